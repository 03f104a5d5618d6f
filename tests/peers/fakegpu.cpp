// fakegpu.cpp: a device for PyTorch that has shapes, storages and lifetimes but no memory and no arithmetic. It takes the place of
// PrivateUse1, so that autograd, the optimizers and modules treat it as a real device (no tensor subclass, no dispatch mode, none of
// the meta device's exceptions). One boxed fallback runs each op on the meta device and gives its outputs storages; each storage's
// birth and death is noted, with the ops that were running.
#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/record_function.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

static const auto FAKE = c10::DeviceType::PrivateUse1;
static const c10::Device META(c10::DeviceType::Meta), DEV(FAKE, 0);

struct Event { int64_t id, bytes; int op; };  // bytes < 0: freed
static std::vector<Event> events;
static int64_t next_id = 1, first_id = 1;
static bool on = true;
static std::mutex lock_;
static std::vector<std::string> names{""};
static std::unordered_map<std::string, int> number{{"", 0}};
static thread_local std::vector<std::string> running;

static int where() {
    std::string s;
    for (auto &n : running) s += (s.empty() ? "" : "|") + n;
    auto [it, fresh] = number.emplace(s, (int)names.size());
    if (fresh) names.push_back(s);
    return it->second;
}
static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction &f) { running.push_back(f.name()); return nullptr; }
static void end(const at::RecordFunction &, at::ObserverContext *) { if (!running.empty()) running.pop_back(); }

static void gone(void *ctx) {
    std::lock_guard<std::mutex> g(lock_);
    if ((int64_t)ctx >= first_id) events.push_back({(int64_t)ctx, -1, 0});
}
static int64_t note(int64_t n) {
    std::lock_guard<std::mutex> g(lock_);
    events.push_back({next_id, n, where()});
    return next_id++;
}
struct Noting final : c10::Allocator {
    c10::DataPtr allocate(size_t n) override {
        if (!on || n == 0) return {nullptr, nullptr, &c10::detail::deleteNothing, DEV};
        return {nullptr, (void *)note((int64_t)n), &gone, DEV};
    }
    c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
    void copy_data(void *, const void *, std::size_t) const override {}
};
static Noting noting;
REGISTER_ALLOCATOR(FAKE, &noting)

struct Guard final : c10::impl::DeviceGuardImplInterface {
    c10::DeviceType type() const override { return FAKE; }
    c10::Device exchangeDevice(c10::Device) const override { return DEV; }
    c10::Device getDevice() const override { return DEV; }
    void setDevice(c10::Device) const override {}
    void uncheckedSetDevice(c10::Device) const noexcept override {}
    c10::Stream getStream(c10::Device) const noexcept override { return c10::Stream(c10::Stream::DEFAULT, DEV); }
    c10::Stream getNewStream(c10::Device, int = 0) const override { return c10::Stream(c10::Stream::DEFAULT, DEV); }
    c10::Stream exchangeStream(c10::Stream) const noexcept override { return c10::Stream(c10::Stream::DEFAULT, DEV); }
    c10::DeviceIndex deviceCount() const noexcept override { return 1; }
    void record(void **, const c10::Stream &, const c10::DeviceIndex, const c10::EventFlag) const override {}
    void block(void *, const c10::Stream &) const override {}
    bool queryEvent(void *) const override { return true; }
    void destroyEvent(void *, const c10::DeviceIndex) const noexcept override {}
    bool queryStream(const c10::Stream &) const override { return true; }
    void synchronizeStream(const c10::Stream &) const override {}
};
namespace { C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard) }

struct Hooks final : at::PrivateUse1HooksInterface {
    bool isBuilt() const override { return true; }
    bool isAvailable() const override { return true; }
    bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
    c10::DeviceIndex deviceCount() const override { return 1; }
    c10::DeviceIndex getCurrentDevice() const override { return 0; }
};
// A PyTorch that was built for CUDA asks CUDA for its devices even here, where there is no driver.
struct NoCuda final : c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA> {
    c10::DeviceIndex deviceCount() const noexcept override { return 0; }
};
static NoCuda no_cuda;
static Hooks hooks;
struct Register {
    Register() {
        at::RegisterPrivateUse1HooksInterface(&hooks);
        c10::impl::device_guard_impl_registry[(size_t)c10::DeviceType::CUDA].store(&no_cuda);
    }
};
static Register register_;

static at::Tensor shell(c10::Storage st, c10::DispatchKey key, const at::Tensor &like) {
    auto t = at::detail::make_tensor<c10::TensorImpl>(std::move(st), c10::DispatchKeySet(key), like.dtype());
    t.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
    if (like.unsafeGetTensorImpl()->is_wrapped_number()) t.unsafeGetTensorImpl()->set_wrapped_number(true);
    return t;
}

struct Twins {
    std::vector<std::pair<c10::StorageImpl *, c10::Storage>> of;  // meta storage -> the fake one
    std::vector<std::pair<at::Tensor, at::Tensor>> pairs;         // (fake, meta)
    at::Tensor meta(const at::Tensor &t) {
        if (!t.defined()) return t;
        if (t.device().type() != FAKE) {  // a host's tensor (a wrapped number stays as it is)
            if (t.dim() == 0) return t;
            return at::empty_strided(t.sizes(), t.strides(), t.options().device(META));
        }
        for (auto &p : pairs) if (p.first.is_same(t)) return p.second;
        c10::Storage st;
        for (auto &p : of) if (p.second.unsafeGetStorageImpl() == t.storage().unsafeGetStorageImpl()) { st = c10::Storage(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(p.first)); break; }
        if (!st) {
            st = c10::Storage(c10::Storage::use_byte_size_t(), t.storage().nbytes(), at::DataPtr(nullptr, META), c10::GetAllocator(c10::DeviceType::Meta), true);
            of.emplace_back(st.unsafeGetStorageImpl(), t.storage());
        }
        auto m = shell(st, c10::DispatchKey::Meta, t);
        pairs.emplace_back(t, m);
        return m;
    }
    at::Tensor fake(const at::Tensor &m) {
        if (!m.defined() || m.device().type() != c10::DeviceType::Meta) return m;
        for (auto &p : pairs) if (p.second.is_same(m)) return p.first;
        for (auto &p : pairs) if (p.second.storage().unsafeGetStorageImpl() == m.storage().unsafeGetStorageImpl()) {  // a view
            auto v = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(p.first.storage()), p.first.key_set(), m.dtype());
            v.unsafeGetTensorImpl()->set_sizes_and_strides(m.sizes(), m.strides(), m.storage_offset());
            return v;
        }
        size_t n = m.storage().nbytes();
        c10::Storage st(c10::Storage::use_byte_size_t(), n, noting.allocate(n), &noting, true);
        of.emplace_back(m.storage().unsafeGetStorageImpl(), st);
        auto t = shell(st, c10::DispatchKey::PrivateUse1, m);
        pairs.emplace_back(t, m);
        return t;
    }
};

static int64_t gpu_sms = 132, gpu_threads = 2048, gpu_workspace = 8519680, gpu_lt_workspace = 0, run = 0;

static void inner(std::initializer_list<int64_t> sizes) {
    std::vector<int64_t> ids;
    if (!on) return;
    for (auto n : sizes) ids.push_back(note(n));
    while (!ids.empty()) { gone((void *)ids.back()); ids.pop_back(); }
}

static int64_t div_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
static int64_t last_pow2(int64_t n) { int64_t p = 1; while (p * 2 <= n) p *= 2; return p; }

// What ATen/native/cuda/Reduce.cuh (setReduceConfig) takes when a reduction is split over thread blocks.
static void reduction(const at::Tensor &in, std::vector<int64_t> dims, int64_t element) {
    if (in.numel() == 0) return;
    std::vector<bool> red(in.dim(), dims.empty());
    for (auto d : dims) red[d < 0 ? d + in.dim() : d] = true;
    int64_t outputs = 1, inputs = 1, best = -1, kept_best = -1, last = 1;
    for (int64_t d = 0; d < in.dim(); d++) {
        (red[d] ? inputs : outputs) *= in.size(d);
        if (in.size(d) == 1) continue;
        if (best < 0 || in.stride(d) <= in.stride(best)) best = d;
        if (!red[d] && (kept_best < 0 || in.stride(d) <= in.stride(kept_best))) kept_best = d;
    }
    if (best < 0 || inputs == 1) return;
    bool fastest = red[best], dense = in.stride(best) == 1;
    for (int64_t d = kept_best; d >= 0 && !red[d]; d--) last *= in.size(d);
    int64_t dim0 = fastest ? inputs : outputs, dim1 = fastest ? outputs : inputs, vec = 1;
    if (dense && fastest && dim0 > 128 && outputs == 1) dim0 /= 4;
    else if (dense && !fastest) {
        vec = 4;
        while (vec > 1 && last % vec) vec /= 2;
        dim0 /= vec;
    }
    int64_t most = 512 / vec, p0 = dim0 < most ? last_pow2(dim0) : most, p1 = dim1 < most ? last_pow2(dim1) : most;
    int64_t width = std::min<int64_t>(p0, 32), height = std::min(p1, most / width);
    width = std::min(p0, most / height);
    int64_t split = fastest ? width : 1, out_mult = fastest ? 1 : width;
    auto values = [&] { return div_up(inputs, split); };
    bool block_y = values() >= height * 16 || values() >= 256;
    if (block_y) split *= height; else out_mult *= height;
    int64_t grid = div_up(outputs / vec, out_mult), target = gpu_sms * (gpu_threads / (width * height));
    if (!block_y || values() < 256 || grid > target) return;
    int64_t ctas = std::max(std::min(div_up(target, grid), div_up(values(), 16)), div_up(values(), 256));
    if (ctas <= 1) return;
    inner({element * outputs * ctas * (fastest ? 1 : width * vec), 4 * grid});
}

static void inside(const std::string &name, const std::vector<c10::IValue> &args) {
    static thread_local int64_t have = -1;
    if (name == "aten::mm" || name == "aten::bmm" || name == "aten::addmm" || name == "aten::baddbmm") {
        if (have != run && on && gpu_workspace) note(gpu_workspace);  // one for each thread that computes, for good
        have = run;
        if (name == "aten::addmm" && gpu_lt_workspace) inner({gpu_lt_workspace});
    } else if (name == "aten::sum" || name == "aten::mean" || name == "aten::amax" || name == "aten::max") {
        if (args.size() < 2 || !args[0].isTensor()) return;
        std::vector<int64_t> dims;
        if (args[1].isIntList()) dims = args[1].toIntVector();
        else if (args[1].isInt()) dims.push_back(args[1].toInt());
        reduction(args[0].toTensor(), dims, name == "aten::max" ? 16 : 4);
    }
}

static void fallback(const c10::OperatorHandle &op, torch::jit::Stack *stack) {
    const auto &schema = op.schema();
    size_t n = schema.arguments().size();
    Twins tw;
    std::vector<c10::IValue> args(stack->end() - n, stack->end());
    stack->erase(stack->end() - n, stack->end());
    if (schema.name() == "aten::_local_scalar_dense") { stack->push_back(c10::Scalar(0)); return; }  // a host that reads a number: 0, so that GradScaler finds no infinity
    if (schema.name() == "aten::_copy_from" || schema.name() == "aten::_copy_from_and_resize") { stack->push_back(args[1]); return; }
    if (!schema.name().compare(0, 12, "aten::_fused") && schema.returns().empty()) return; // an optimizer's: in place
    torch::jit::Stack metas;
    for (auto &a : args) {
        if (a.isTensor()) metas.push_back(tw.meta(a.toTensor()));
        else if (a.isTensorList()) {
            std::vector<at::Tensor> l;
            for (const at::Tensor &t : a.toTensorVector()) l.push_back(tw.meta(t));
            metas.push_back(l);
        } else if (a.isOptionalTensorList()) {
            c10::List<std::optional<at::Tensor>> l;
            for (std::optional<at::Tensor> t : a.toOptionalTensorList()) l.push_back(t ? std::optional(tw.meta(*t)) : t);
            metas.push_back(l);
        } else if (a.isDevice() && a.toDevice().type() == FAKE) metas.push_back(META);
        else metas.push_back(a);
    }
    std::vector<std::pair<at::Tensor, at::Tensor>> given = tw.pairs;
    static auto convolution = c10::Dispatcher::singleton().findSchemaOrThrow("aten::convolution", "");
    static auto convolution_backward = c10::Dispatcher::singleton().findSchemaOrThrow("aten::convolution_backward", "");
    if (schema.name() == "aten::convolution_overrideable") convolution.callBoxed(&metas);
    else if (schema.name() == "aten::convolution_backward_overrideable") {
        metas.insert(metas.begin() + 3, c10::IValue(std::vector<int64_t>{args[0].toTensor().size(1)}));
        convolution_backward.callBoxed(&metas);
    } else op.callBoxed(&metas);
    for (auto &p : given) {  // what was written may have another size now
        auto &t = p.first; auto &m = p.second;
        if (t.sizes() != m.sizes() || t.strides() != m.strides()) {
            size_t need = m.storage().nbytes();
            if (t.storage().nbytes() < need) {
                t.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(noting.allocate(need));
                t.storage().unsafeGetStorageImpl()->set_nbytes(need);
            }
            t.unsafeGetTensorImpl()->set_sizes_and_strides(m.sizes(), m.strides(), m.storage_offset());
        }
    }
    for (auto &r : metas) {
        if (r.isTensor()) stack->push_back(tw.fake(r.toTensor()));
        else if (r.isTensorList()) {
            std::vector<at::Tensor> l;
            for (const at::Tensor &t : r.toTensorVector()) l.push_back(tw.fake(t));
            stack->push_back(l);
        } else stack->push_back(r);
    }
    inside(schema.name(), args);
}
// 1 flash (16 bits), 2 memory-efficient
static int64_t sdp_choice(const at::Tensor &q, const at::Tensor &, const at::Tensor &, const std::optional<at::Tensor> &, double, bool, std::optional<double>, bool) {
    return q.element_size() == 2 ? 1 : 2;
}
namespace at::native { REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &sdp_choice) }
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
    // CUDA has kernels of its own for these; elsewhere they are made of other ops
    for (const char *name : {"native_layer_norm", "native_layer_norm_backward", "native_group_norm", "native_group_norm_backward",
                             "_scaled_dot_product_efficient_attention", "_scaled_dot_product_efficient_attention_backward",
                             "_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_backward", "native_dropout", "native_dropout_backward",
                             "silu_backward", "mish_backward"})
        m.impl(name, torch::CppFunction::makeFromBoxedFunction<&fallback>());
    m.impl("convolution_overrideable", torch::CppFunction::makeFromBoxedFunction<&fallback>());
    m.impl("convolution_backward_overrideable", torch::CppFunction::makeFromBoxedFunction<&fallback>());
}
TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }

namespace at::autocast {
#define LOW(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define WIDE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define WIDE_TYPE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
    AT_FORALL_LOWER_PRECISION_FP(LOW)
    AT_FORALL_FP32(WIDE)
    AT_FORALL_FP32_SET_OPT_DTYPE(WIDE_TYPE)
    AT_FORALL_PROMOTE(PROMOTE)
}
}  // the lists are those of CUDA

extern "C" {
void fg_record() { at::addGlobalCallback(at::RecordFunctionCallback(begin, end).scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION})); }
void fg_gpu(int64_t sms, int64_t threads, int64_t workspace, int64_t lt) { gpu_sms = sms; gpu_threads = threads; gpu_workspace = workspace; gpu_lt_workspace = lt; }
void fg_clear() { events.clear(); run++; first_id = next_id; }
int64_t fg_count() { return (int64_t)events.size(); }
void fg_on(int yes) { on = yes; }
void fg_get(int64_t i, int64_t *id, int64_t *bytes) { *id = events[i].id; *bytes = events[i].bytes; }
const char *fg_op(int64_t i) { return names[events[i].op].c_str(); }
int64_t fg_alloc(int64_t n) { return note(n); }
void fg_free(int64_t id) { gone((void *)id); }
}
