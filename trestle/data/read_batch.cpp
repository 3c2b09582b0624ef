#include "trestle/data/read_batch.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <cstddef>
#include <cstring>
#include <exception>
#include <new>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/keyed_seed.h"
#include "trestle/base/text.h"

namespace trestle::data {
namespace {

using Row = std::vector<at::Tensor>;  // the tensors of one example

Row wanted_of(Sample& sample, Part part) {
  if (part == Part::Input) return {std::move(sample.input)};
  if (part == Part::Target) return {std::move(sample.target)};
  Row row = {std::move(sample.input), std::move(sample.target)};
  for (at::Tensor& tensor : sample.more) row.push_back(std::move(tensor));
  return row;
}

std::string name_of_column(std::size_t column, Part part) {
  if (part == Part::Target || (part == Part::Both && column == 1)) return "target";
  return column == 0 ? "input" : text("tensor ", column);
}

// Names the example that differs; torch's own message would not.
void check_can_stack(const std::vector<Row>& rows, const std::vector<std::string>& names,
                     Part part) {
  auto differ = [](const at::Tensor& a, const at::Tensor& b) {
    return a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type();
  };
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].size() != rows[0].size())
      throw FormatError(text("'", names[i], "' has ", rows[i].size(), " tensors, but '", names[0],
                             "' in the same batch has ", rows[0].size()));
    for (std::size_t column = 0; column < rows[i].size(); ++column) {
      const at::Tensor& tensor = rows[i][column];
      const at::Tensor& first = rows[0][column];
      if (!tensor.defined() || !tensor.device().is_cpu())
        throw UsageError(text("example '", names[i], "' does not consist of CPU tensors"));
      if (!differ(tensor, first)) continue;
      throw FormatError(
          text("the ", name_of_column(column, part), " of '", names[i], "' is ", tensor.sizes(),
               " ", tensor.scalar_type(), ", but that of '", names[0], "' in the same batch is ",
               first.sizes(), " ", first.scalar_type()),
          {.hint = "A batch needs examples of one shape: resize them, or use batches of 1."});
    }
  }
}

// Call it only in a catch block.
[[noreturn]] void rethrow_with_example(std::int64_t example) {
  const std::string context = text("while reading example ", example);
  try {
    throw;
  } catch (Error& error) {
    error.add_context(context);
    throw;
  } catch (c10::Error& error) {  // remains libtorch's error, which reports missing memory
    error.add_context(context);
    throw;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    std::throw_with_nested(Error(text(context, ": ", error.what())));
  }
}

// Copies by hand: at::stack would use intra-op threads, which training needs, and
// at::set_num_threads(1) here would also change the default of threads that start later.
void stack(const std::vector<Row>& rows, std::size_t column, at::Tensor& out) {
  auto* to = static_cast<std::byte*>(out.mutable_data_ptr());
  for (const Row& row : rows) {
    const at::Tensor from = row[column].contiguous();
    if (from.nbytes() > 0) std::memcpy(to, from.const_data_ptr(), from.nbytes());
    to += from.nbytes();
  }
}

// Allocates memory for `count` examples like this one, before the rest is read: without enough
// memory, reading them is useless. Returns nothing for an example that check_can_stack() rejects.
at::Tensor room_for(std::size_t count, const at::Tensor& example, HostMemory memory) {
  if (!example.defined() || !example.device().is_cpu()) return {};
  std::vector<std::int64_t> sizes = example.sizes().vec();
  sizes.insert(sizes.begin(), static_cast<std::int64_t>(count));
  return at::empty(
      sizes, example.options().requires_grad(false).pinned_memory(memory == HostMemory::Pinned));
}

// Reads both parts if the data set has both: a transform may use either.
Sample read_example(const Dataset& dataset, std::int64_t example, std::int64_t epoch, Part part,
                    const LoaderOptions& options) {
  constexpr std::int64_t of_a_transform = -2;  // Loader::order() uses -1
  constexpr std::int64_t of_a_draw = -3;
  Sample sample = dataset.draw(example, part, keyed_seed(options.seed, epoch, example, of_a_draw));
  if (options.transform)
    sample = options.transform(std::move(sample),
                               keyed_seed(options.seed, epoch, example, of_a_transform));
  return sample;
}

void hand_over(std::vector<at::Tensor> columns, Part part, Batch& batch) {
  if (part == Part::Target) {
    batch.targets = std::move(columns[0]);
    return;
  }
  batch.inputs = std::move(columns[0]);
  if (part == Part::Input) return;
  batch.targets = std::move(columns[1]);
  for (std::size_t i = 2; i < columns.size(); ++i) batch.more.push_back(std::move(columns[i]));
}

}  // namespace

Batch read_batch(const Dataset& dataset, std::span<const std::int64_t> examples, std::int64_t epoch,
                 Part part, const LoaderOptions& options) {
  Batch batch;
  std::vector<Row> rows;
  std::vector<at::Tensor> columns;
  for (const std::int64_t example : examples) {
    try {
      Sample sample = read_example(dataset, example, epoch, part, options);
      rows.push_back(wanted_of(sample, part));
      batch.names.push_back(std::move(sample.name));
    } catch (...) {
      rethrow_with_example(example);
    }
    if (rows.size() > 1) continue;
    for (const at::Tensor& tensor : rows[0])
      columns.push_back(room_for(examples.size(), tensor, options.memory));
  }
  check_can_stack(rows, batch.names, part);
  for (std::size_t column = 0; column < columns.size(); ++column)
    stack(rows, column, columns[column]);
  hand_over(std::move(columns), part, batch);
  return batch;
}

}  // namespace trestle::data
