#include "trestle/device/random_tape.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/device/keyed_generator.h"
#include "trestle/device/random_draw.h"

namespace trestle {
namespace {

// The complete state of a CPU generator.
struct GeneratorState {
  at::mt19937_data_pod engine = {};
  std::optional<float> next_float = {};
  std::optional<double> next_double = {};

  static GeneratorState of(const at::Generator& generator) {
    auto* const impl = generator.get<at::CPUGeneratorImpl>();
    return {.engine = impl->engine().data(),
            .next_float = impl->next_float_normal_sample(),
            .next_double = impl->next_double_normal_sample()};
  }
  void set(const at::Generator& generator) const {
    auto* const impl = generator.get<at::CPUGeneratorImpl>();
    at::mt19937 numbers;
    numbers.set_data(engine);
    impl->set_engine(numbers);
    impl->set_next_float_normal_sample(next_float);
    impl->set_next_double_normal_sample(next_double);
  }
  friend bool operator==(const GeneratorState& a, const GeneratorState& b) {
    return a.engine.seed_ == b.engine.seed_ && a.engine.left_ == b.engine.left_ &&
           a.engine.next_ == b.engine.next_ && a.engine.seeded_ == b.engine.seeded_ &&
           a.engine.state_ == b.engine.state_ && a.next_float == b.next_float &&
           a.next_double == b.next_double;
  }
};

// A draw starts from the state at which the last draw of its source ended, or else from `state`.
struct Draw {
  std::size_t source = 0;
  std::shared_ptr<const GeneratorState> state = nullptr;
};

}  // namespace

struct RandomTape::Contents {
  std::vector<Draw> draws;
  std::vector<std::pair<at::Device, at::Tensor>> gpu_states;
};

namespace {

// A tape that this thread is recording or replaying.
struct TapeScope {
  RandomTape::Contents* recorded = nullptr;  // null in a replay
  const RandomTape::Contents* replayed = nullptr;
  std::size_t next = 0;                                  // index of the replay's next draw
  std::map<std::size_t, at::Generator> generators = {};  // of a replay, one for each source
  // In a recording: the number of each source, and the state at which its last draw ended.
  struct Source {
    std::size_t number = 0;
    std::optional<GeneratorState> end = {};
  };
  std::map<const void*, Source> sources = {};

  void begin_draw(const at::Generator& source, const GeneratorState& state) {
    auto& known =
        sources.try_emplace(source.unsafeGetGeneratorImpl(), Source{.number = sources.size()})
            .first->second;
    const bool continues = known.end && *known.end == state;
    recorded->draws.push_back(
        {.source = known.number,
         .state = continues ? nullptr : std::make_shared<const GeneratorState>(state)});
  }
  void end_draw(const at::Generator& source, const GeneratorState& state) {
    sources.at(source.unsafeGetGeneratorImpl()).end = state;
  }
  const at::Generator& next_generator() {
    if (next >= replayed->draws.size()) {
      throw StateError(
          text("a recomputed function draws random numbers at least ", next + 1,
               " times, but drew them ", replayed->draws.size(), " times in its forward"),
          {.hint = "The function must do the same both times."});
    }
    const Draw& draw = replayed->draws[next++];
    auto& generator = generators[draw.source];
    if (!generator.defined()) generator = at::detail::createCPUGenerator();
    if (draw.state) draw.state->set(generator);
    return generator;
  }
};

thread_local std::vector<TapeScope*> scopes;             // innermost last
thread_local const at::Generator* drawn_from = nullptr;  // by the running operator

// The generator of this thread's draws from shared sources. Only one draw runs at a time.
const at::Generator& own_generator() {
  thread_local const at::Generator generator = at::detail::createCPUGenerator();
  return generator;
}

void pop(const TapeScope* scope) { std::erase(scopes, scope); }

}  // namespace

RandomTape::RandomTape() : contents_(std::make_unique<Contents>()) {}
RandomTape::~RandomTape() = default;

struct RandomTape::Record::Scope {
  TapeScope tape;
  c10::impl::IncludeDispatchKeyGuard asking = intercept_random_operators();
};

RandomTape::Record::Record(RandomTape& tape, const std::vector<at::Device>& gpus)
    : scope_(new Scope{.tape = {.recorded = tape.contents_.get()}}) {
  for (const at::Device device : gpus) {
    auto generator = at::globalContext().defaultGenerator(device);
    const std::lock_guard lock(generator.mutex());
    tape.contents_->gpu_states.emplace_back(device, generator.get_state());
  }
  scopes.push_back(&scope_->tape);
}

RandomTape::Record::~Record() { pop(&scope_->tape); }

struct RandomTape::Replay::Scope {
  TapeScope tape;
  std::vector<std::pair<at::Device, at::Tensor>> gpu_states_before = {};
  c10::impl::IncludeDispatchKeyGuard asking = intercept_random_operators();
};

RandomTape::Replay::Replay(const RandomTape& tape)
    : scope_(new Scope{.tape = {.replayed = tape.contents_.get()}}) {
  for (const auto& [device, state] : tape.contents_->gpu_states) {
    auto generator = at::globalContext().defaultGenerator(device);
    const std::lock_guard lock(generator.mutex());
    scope_->gpu_states_before.emplace_back(device, generator.get_state());
    generator.set_state(state);
  }
  scopes.push_back(&scope_->tape);
}

RandomTape::Replay::~Replay() {
  pop(&scope_->tape);
  for (const auto& [device, state] : scope_->gpu_states_before) {
    auto generator = at::globalContext().defaultGenerator(device);
    const std::lock_guard lock(generator.mutex());
    generator.set_state(state);
  }
}

struct RandomDraw::State {
  at::Generator source;
  at::Generator generator;                 // the operator draws from this one
  std::unique_lock<std::mutex> lock = {};  // of a shared source
  std::vector<TapeScope*> recording = {};
  const at::Generator* outer = nullptr;
};

// The innermost replay provides the numbers; recordings inside of it record them again. The lock of
// a shared generator is held while the operator draws from a copy, because the operator's kernel
// locks the generator itself.
RandomDraw::RandomDraw(const at::Generator& source, Source kind)
    : state_(new State{.source = source, .generator = source, .outer = drawn_from}) {
  if (drawn_from != nullptr) {
    state_->generator = *drawn_from;
    return;
  }
  auto scope = scopes.rbegin();
  for (; scope != scopes.rend() && (*scope)->replayed == nullptr; ++scope)
    state_->recording.push_back(*scope);
  const bool replays = scope != scopes.rend();
  if (replays) state_->source = state_->generator = (*scope)->next_generator();
  if (!state_->recording.empty()) {
    if (!replays && kind == Source::Shared) state_->lock = std::unique_lock(state_->source.mutex());
    const auto begin = GeneratorState::of(state_->source);
    for (TapeScope* tape : state_->recording) tape->begin_draw(state_->source, begin);
    if (state_->lock.owns_lock()) {
      state_->generator = own_generator();
      begin.set(state_->generator);
    }
  }
  drawn_from = &state_->generator;
}

RandomDraw::~RandomDraw() {
  drawn_from = state_->outer;
  if (state_->recording.empty()) return;
  const auto end = GeneratorState::of(state_->generator);
  if (state_->lock.owns_lock()) end.set(state_->source);
  for (TapeScope* tape : state_->recording) tape->end_draw(state_->source, end);
}

const at::Generator& RandomDraw::generator() const { return state_->generator; }

bool RandomDraw::is_taped() { return !scopes.empty(); }

}  // namespace trestle
