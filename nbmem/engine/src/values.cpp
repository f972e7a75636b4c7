// What torch's kernels would have written, computed on the CPU and laid where it belongs.
//
// The stand-in runs no kernel, so whatever values decide would be decided by zeros. Here each CUDA
// kernel of the dispatcher gets a second half: the same operator on copies of its arguments, whose
// results go into the card's memory. The first half is torch's own and asks the allocator as ever.
// No dispatch mode and no Python: while a mode is active, and for tensors that Python has seen,
// autograd's formulas and its engine take other ways.
#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/CPUAllocator.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/util/Exception.h>

#include <cstring>
#include <deque>
#include <map>
#include <set>
#include <unordered_map>

using namespace c10;

extern "C" void standin_count(int64_t count);  // what the next read of 4 or 8 bytes gives; -1: what lies there

namespace {

constexpr size_t SMALL = size_t(1) << 20;  // bytes of a storage; a call with a larger one is not followed
const auto CARD = DispatchKey::CUDA;

bool on_card(const at::Tensor& t) { return t.defined() && t.device().is_cuda(); }

// Whether a tensor's values are bytes in a storage that can be read here.
bool readable(const at::Tensor& t) {
  return t.layout() == kStrided && (t.is_cuda() || t.is_cpu()) && !t.is_quantized() && !t._is_zerotensor() &&
         t.has_storage() && t.storage().nbytes() <= SMALL;
}

// A tensor of the CPU in bytes of the CPU, as another lies in its own.
at::Tensor seen(const at::Tensor& t, const Storage& bytes) {
  auto view = at::detail::make_tensor<TensorImpl>(Storage(bytes), DispatchKeySet(DispatchKey::CPU), t.dtype());
  auto* impl = view.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(t.sizes(), t.strides(), t.storage_offset());
  if (t.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  impl->_set_conj(t.is_conj());
  impl->_set_neg(t.is_neg());
  return view;
}

// The arguments of a call on the CPU, as they were before it.
class Twins {
 public:
  bool known = true;

  IValue of(const IValue& v) {
    if (v.isDevice()) return Device(kCPU);
    if (v.isGenerator()) return IValue();
    if (v.isStorage()) known = false;
    if (v.isTensor() && v.toTensor().defined()) return of(v.toTensor());
    if (!v.isList() || !v.toList().elementType()->isSubtypeOf(*OptionalType::ofTensor())) return v;
    c10::impl::GenericList all(v.toList().elementType());
    for (IValue one : v.toList()) all.push_back(of(one));
    return all;
  }

 private:
  std::map<StorageImpl*, Storage> bytes_;

  at::Tensor of(const at::Tensor& t) {
    if (!(known = known && readable(t))) return t;
    auto* storage = t.storage().unsafeGetStorageImpl();
    auto it = bytes_.find(storage);
    if (it == bytes_.end()) {
      size_t size = storage->nbytes();
      Storage copy(Storage::use_byte_size_t(), int64_t(size), GetCPUAllocator(), /*resizable=*/true);
      if (size) memcpy(copy.mutable_data(), storage->data(), size);
      it = bytes_.emplace(storage, std::move(copy)).first;
    }
    return seen(t, it->second);
  }
};

void write(const at::Tensor& t, const at::Tensor& value) {
  if (!on_card(t) || !value.defined() || !readable(t) || value.layout() != kStrided || t.sizes() != value.sizes()) return;
  auto* storage = t.storage().unsafeGetStorageImpl();
  if (!t.numel()) return;
  Storage there(Storage::use_byte_size_t(), int64_t(storage->nbytes()), DataPtr(storage->mutable_data(), kCPU), nullptr, false);
  auto target = seen(t, there);
  if (at::has_internal_overlap(target) != at::MemOverlap::Yes) target.copy_(value);
}

void write(const IValue& to, const IValue& value) {
  if (to.isTensor() && value.isTensor()) return write(to.toTensor(), value.toTensor());
  if (!to.isList() || !value.isList() || to.toListRef().size() != value.toListRef().size()) return;
  for (size_t i = 0; i < to.toListRef().size(); ++i) write(to.toListRef()[i], value.toListRef()[i]);
}

// What an operator's host code reads of its own kernels: how long its first result is, along `dim`.
int64_t count_of(const std::string& name, const torch::jit::Stack& made, int64_t dim) {
  static const std::set<std::string> counted{"aten::nonzero", "aten::_unique", "aten::_unique2", "aten::unique_consecutive",
                                             "aten::unique_dim", "aten::unique_dim_consecutive"};
  if (!counted.count(name)) return -1;
  auto first = made.at(0).toTensor();
  bool trues = name == "aten::_unique2" && first.scalar_type() == kBool;  // those are counted instead
  return trues ? first.any().item<bool>() : first.dim() ? first.size(dim) : 1;
}

// CPU's random numbers are drawn as if nobody had.
class Drawing {
 public:
  explicit Drawing(bool draws) {
    if (draws) state_ = generator_.get_state();
  }
  ~Drawing() {
    if (state_.defined()) generator_.set_state(state_);
  }

 private:
  at::Generator generator_ = at::detail::getDefaultCPUGenerator();
  at::Tensor state_;
};

thread_local int64_t expected = -1;

class Halves : public OperatorKernel {
 public:
  Halves(const OperatorHandle& op)
      : kernel_(op.getComputedKernelForDispatchKey(CARD)), draws_(op.hasTag(at::Tag::nondeterministic_seeded)) {
    auto& taken = op.schema().arguments();
    for (size_t i = 0; i < taken.size(); ++i)
      if (taken[i].alias_info() && taken[i].alias_info()->isWrite()) written_.push_back(i);
  }

  void operator()(const OperatorHandle& op, DispatchKeySet keys, torch::jit::Stack* stack) {
    size_t count = op.schema().arguments().size(), begin = stack->size() - count;
    Twins twins;
    torch::jit::Stack made;
    for (size_t i = 0; i < count && twins.known; ++i) made.push_back(twins.of((*stack)[begin + i]));
    std::vector<std::pair<IValue, IValue>> changed;
    bool known = twins.known;
    int64_t dim = 0;  // of unique_dim and its kin, whose only integer it is
    for (const auto& v : made)
      if (v.isInt()) dim = v.toInt();
    if (known) {
      for (size_t i : written_) changed.emplace_back((*stack)[begin + i], made[i]);
      known = computed(op, made);
    }
    int64_t outer = std::exchange(expected, known ? count_of(op.operator_name().name, made, dim) : -1);
    standin_count(expected);
    try {
      kernel_.callBoxed(op, keys, stack);
    } catch (...) {
      standin_count(expected = outer);
      throw;
    }
    standin_count(expected = outer);
    if (!known) return;
    at::AutoDispatchBelowADInplaceOrView below;
    for (auto& [to, value] : changed) write(to, value);
    for (size_t i = 0; i < made.size(); ++i) {
      if (made[i].isBool()) (*stack)[begin + i] = made[i];
      write((*stack)[begin + i], made[i]);
    }
  }

 private:
  SafeKernelFunction kernel_;
  bool draws_;
  std::vector<size_t> written_;

  bool computed(const OperatorHandle& op, torch::jit::Stack& stack) {
    at::AutoDispatchBelowADInplaceOrView below;
    Drawing drawing(draws_);
    try {
      op.callBoxed(&stack);
    } catch (const std::exception&) {
      return false;  // the CPU has no such kernel, or takes no such values
    }
    return true;
  }
};

bool is_written(const Argument& a) {
  bool tensor = a.type()->str().find("Tensor") != std::string::npos;
  return tensor && (!a.alias_info() || a.alias_info()->isWrite());
}

// Operators with a kernel that would write something; the others' code is the host's and does all there is to do.
bool is_followed(const OperatorHandle& op) {
  static const std::set<std::string> host{"aten::_local_scalar_dense", "aten::record_stream", "aten::set_", "aten::resize_",
                                          "aten::_resize_output_", "aten::lift", "aten::lift_fresh"};
  auto& name = op.operator_name().name;
  // The bags that a forward notes for its backward are noted otherwise on the CPU.
  if (host.count(name) || name.find("empty") != std::string::npos || name.find("embedding_bag") != std::string::npos) return false;
  if (name == "aten::equal") return true;  // a bool, from kernels that are called past the dispatcher
  if (!op.hasKernelForDispatchKey(CARD) && !op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd)) return false;
  auto& schema = op.schema();
  for (auto& a : schema.returns())
    if (is_written(a)) return true;
  return false;
}

struct Silent : WarningHandler {
  void process(const Warning&) override {}
};

}  // namespace

extern "C" void standin_follow() {
  static std::vector<RegistrationHandleRAII> kept;
  Silent silent;
  WarningUtils::WarningHandlerGuard guard(&silent);
  auto& dispatcher = Dispatcher::singleton();
  for (auto& name : dispatcher.getAllOpNames()) {
    auto op = dispatcher.findSchema(name);
    if (!op || name.name.rfind("aten::", 0) != 0 || !is_followed(*op)) continue;
    auto kernel = KernelFunction::makeFromBoxedFunctor(std::make_unique<Halves>(*op));
    kept.push_back(dispatcher.registerImpl(name, CARD, std::move(kernel), std::nullopt, nullptr, "values.cpp"));
  }
  at::globalContext().lazyInitDevice(kCUDA);
  // A fresh block holds zeros, not what lay there before.
  cuda::CUDACachingAllocator::attachAllocatorTraceTracker([](const auto& e) {
    if (e.action_ == std::decay_t<decltype(e)>::ALLOC && e.size_ <= SMALL)
      memset(reinterpret_cast<void*>(e.addr_), 0, e.size_);
  });
}
