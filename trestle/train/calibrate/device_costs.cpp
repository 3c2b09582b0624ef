#include "trestle/train/calibrate/device_costs.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <memory>

#include "trestle/base/text.h"
#include "trestle/base/units.h"
#include "trestle/optim/factory.h"

namespace trestle::train {

namespace {

constexpr std::int64_t ratio = 16;  // of ProductShape::Tall and Thin

struct ProductSizes {
  std::int64_t rows, inner, columns;
};

ProductSizes product_sizes(plan::ProductShape shape, std::int64_t rows) {
  switch (shape) {
    case plan::ProductShape::Square:
      break;
    case plan::ProductShape::Tall:
      return {rows, rows / ratio, rows / ratio};
    case plan::ProductShape::Thin:
      return {rows, rows / ratio, rows};
  }
  return {rows, rows, rows};
}

std::int64_t smallest_rows(plan::ProductShape shape) {
  if (shape == plan::ProductShape::Square) return 64;
  return shape == plan::ProductShape::Tall ? 1024 : 256;
}

std::int64_t largest_rows(plan::ProductShape shape) {
  return shape == plan::ProductShape::Tall ? 65'536 : 8192;
}

// A product of this size, ready to run.
std::function<void()> product(const std::string& type, const ProductSizes& n, at::Device device) {
  const auto made = [&](std::int64_t rows, std::int64_t columns, at::ScalarType type_of_numbers) {
    return at::ones({rows, columns}, at::device(device).dtype(type_of_numbers));
  };
  if (type == "int8") {
    const at::Tensor a = made(n.rows, n.inner, at::kChar);
    const at::Tensor b = made(n.columns, n.inner, at::kChar).t();  // cuBLAS takes this order alone
    return [a, b] { (void)at::_int_mm(a, b); };
  }
  const at::ScalarType number = type == "bf16" ? at::kBFloat16 : at::kFloat;
  const at::Tensor a = made(n.rows, n.inner, number), b = made(n.inner, n.columns, number);
  return [a, b, out = made(n.rows, n.columns, number)]() mutable { at::mm_out(out, a, b); };
}

std::function<void()> copy(at::Device from, at::Device to, Bytes bytes) {
  const at::Tensor source = at::ones({bytes}, at::device(from).dtype(at::kByte));
  const at::Tensor target = at::zeros({bytes}, at::device(to).dtype(at::kByte));
  return [source, target]() mutable { target.copy_(source); };
}

// The device whose end of work is the end of a copy.
at::Device waited_for(at::Device from, at::Device to) { return to.is_cpu() ? from : to; }

std::unique_ptr<torch::optim::Optimizer> optimizer_over(const std::string& name, at::Device device,
                                                        std::int64_t numbers) {
  at::Tensor parameter =
      at::zeros({numbers}, at::device(device).dtype(at::kFloat)).set_requires_grad(true);
  parameter.mutable_grad() = at::ones_like(parameter);
  optim::OptimizerOptions options;
  options.name = name == "sgd_momentum" ? "sgd" : name;
  if (name == "sgd_momentum") options.momentum = 0.9;
  return optim::make_optimizer({parameter}, options);
}

}  // namespace

CalibrationDepth whole_calibration() {
  CalibrationDepth depth;
  for (Bytes bytes = Bytes{1} << 10; bytes <= Bytes{64} << 20; bytes *= 4)
    depth.messages.push_back(bytes);
  depth.copies = {Bytes{4} << 10, Bytes{64} << 10, Bytes{1} << 20, Bytes{16} << 20,
                  Bytes{64} << 20};
  return depth;
}

CalibrationDepth quick_calibration() {
  CalibrationDepth depth;
  depth.budget = {.least = 3, .seconds = 0.02, .sample = 2e-4};
  depth.longest_product = 0.03;
  depth.memory = Bytes{64} << 20;
  depth.optimizer = Bytes{8} << 20;
  depth.messages = {Bytes{1} << 10, Bytes{32} << 10, Bytes{1} << 20, Bytes{4} << 20};
  depth.copies = {Bytes{64} << 10, Bytes{4} << 20};
  depth.quick = true;
  return depth;
}

plan::ProductTable time_products(plan::ProductShape shape, const std::string& type,
                                 at::Device device, const CalibrationDepth& depth,
                                 std::string* why) {
  plan::ProductTable table{.shape = shape,
                           .type = type,
                           .origin = plan::Origin::Measured,
                           .from = type == "int8" ? "at::_int_mm" : "at::mm_out"};
  constexpr double growth = 8;  // of the time from one size to the next
  for (std::int64_t rows = smallest_rows(shape); rows <= largest_rows(shape); rows *= 2) {
    try {
      const Timed timed =
          time_runs(product(type, product_sizes(shape, rows), device), device, depth.budget);
      table.sizes.push_back(static_cast<double>(rows));
      table.seconds.push_back(timed.seconds);
      table.spread.push_back(timed.spread);
      if (timed.seconds * growth > depth.longest_product) break;
    } catch (const c10::Error& error) {
      if (table.sizes.empty()) *why = split(error.what_without_backtrace(), '\n').at(0);
      break;
    }
  }
  return table;
}

plan::Figure memory_bandwidth(at::Device device, const CalibrationDepth& depth) {
  const Timed timed = time_runs(copy(device, device, depth.memory), device, depth.budget);
  return measured(2 * static_cast<double>(depth.memory) / timed.seconds, timed,
                  text("a copy of ", format_bytes(depth.memory), ", read and written"));
}

plan::Figure kernel_start(at::Device device, const CalibrationDepth& depth) {
  at::Tensor one = at::zeros({1}, at::device(device).dtype(at::kFloat));
  const Timed timed = time_runs([&] { one.add_(1); }, device, depth.budget);
  return measured(timed.seconds, timed, "an addition to one number");
}

plan::CopyTable time_copies(plan::CopyPath path, at::Device from, at::Device to,
                            const CalibrationDepth& depth) {
  plan::CopyTable table{.path = path,
                        .origin = plan::Origin::Measured,
                        .from = text("copies from ", from.str(), " to ", to.str())};
  for (const Bytes bytes : depth.copies) {
    const Timed timed = time_runs(copy(from, to, bytes), waited_for(from, to), depth.budget);
    table.bytes.push_back(static_cast<double>(bytes));
    table.seconds.push_back(timed.seconds);
    table.spread.push_back(timed.spread);
  }
  return table;
}

std::vector<std::string> measured_optimizers() {
  return {"sgd", "sgd_momentum", "adam", "adamw", "rmsprop"};
}

plan::OptimizerTime time_optimizer(const std::string& name, at::Device device,
                                   const CalibrationDepth& depth) {
  const auto optimizer =
      optimizer_over(name, device, depth.optimizer / static_cast<Bytes>(sizeof(float)));
  const Timed timed = time_runs([&] { optimizer->step(); }, device, depth.budget);
  return {name, measured(timed.seconds / static_cast<double>(depth.optimizer), timed,
                         text("steps of one parameter of ", format_bytes(depth.optimizer)))};
}

plan::Figure optimizer_start(at::Device device, const CalibrationDepth& depth) {
  const auto optimizer = optimizer_over("adamw", device, 1);
  const Timed timed = time_runs([&] { optimizer->step(); }, device, depth.budget);
  return measured(timed.seconds, timed, "a step of AdamW on one number");
}

double resident_bytes() {
  std::ifstream in("/proc/self/statm");
  double all = 0, resident = 0;
  in >> all >> resident;
  return resident * static_cast<double>(sysconf(_SC_PAGESIZE));
}

}  // namespace trestle::train
