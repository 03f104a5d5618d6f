// fakegpu.cpp: a device for PyTorch that has shapes, storages and lifetimes but no memory and no arithmetic. It stands
// in the place of PrivateUse1, so that autograd, the optimizers and modules treat it as a real device: no tensor
// subclass, no dispatch mode, none of the meta device's exceptions. One boxed kernel runs each op on the meta device and
// gives its outputs storages; each storage's birth and death is written down, with the ops that were running.
//
// It is a stand-in for CUDA: ops for which CUDA has a kernel of its own are one op here, too, and what those kernels
// allocate inside themselves is told by slots_of(). Not seen: workspaces of convolutions, sorting buffers (gradients
// of an Embedding with more than 3072 indices), partial sums of a normalisation's gradients with more than 65536 rows.
// Recurrent layers are cuDNN's, as fakegpu.py calls them, with sizes that are taken to be core/eager/cudnn_rnn.c's.
#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <ATen/record_function.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>
#include <torch/version.h>
#include <algorithm>
#include <cmath>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#define SINCE(minor) (TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= (minor))

using Values = std::vector<c10::IValue>;
static const auto FAKE = c10::DeviceType::PrivateUse1;
static const c10::Device META(c10::DeviceType::Meta), DEVICE(FAKE, 0);

// ---- what is written down

struct Event {
    int64_t id, bytes; // bytes < 0: freed
    int ops, layer;    // numbers of texts
};
static std::vector<Event> events;
static int64_t next_id = 1, first_id = 1, run = 0; // tensors below first_id are of an earlier run
static bool recording = true;
static std::mutex guard; // of all that stands above and of texts: autograd has a thread of its own
static std::vector<std::string> texts{""};
static std::unordered_map<std::string, int> number_of{{"", 0}};
static thread_local std::vector<std::string> running, layers;

static int text_number(const std::string &text) {
    auto [found, fresh] = number_of.emplace(text, (int)texts.size());
    if (fresh) texts.push_back(text);
    return found->second;
}

static std::string joined(const std::vector<std::string> &names) {
    std::string text;
    for (const auto &name : names) text += (text.empty() ? "" : "|") + name;
    return text;
}

static std::unique_ptr<at::ObserverContext> op_begins(const at::RecordFunction &function) {
    running.push_back(function.name());
    return nullptr;
}

static void op_ends(const at::RecordFunction &, at::ObserverContext *) {
    if (!running.empty()) running.pop_back();
}

static int64_t write_birth(int64_t bytes) {
    std::lock_guard<std::mutex> hold(guard);
    events.push_back({next_id, bytes, text_number(joined(running)), layers.empty() ? 0 : text_number(layers.back())});
    return next_id++;
}

static void write_death(void *id) {
    std::lock_guard<std::mutex> hold(guard);
    if ((int64_t)id >= first_id) events.push_back({(int64_t)id, -1, 0, 0});
}

// ---- the device

struct Allocator final : c10::Allocator {
    c10::DataPtr allocate(size_t bytes) override {
        if (!recording || bytes == 0) return {nullptr, nullptr, &c10::detail::deleteNothing, DEVICE};
        void *number = (void *)write_birth((int64_t)bytes);
        return {number, number, &write_death, DEVICE}; // an address that nobody reads: storages without one take no resize_()
    }
    c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
    void copy_data(void *, const void *, std::size_t) const override {}
};
static Allocator allocator;
REGISTER_ALLOCATOR(FAKE, &allocator)

struct DeviceGuard : c10::impl::DeviceGuardImplInterface {
    c10::DeviceType type() const override { return FAKE; }
    c10::Device exchangeDevice(c10::Device) const override { return DEVICE; }
    c10::Device getDevice() const override { return DEVICE; }
    void setDevice(c10::Device) const override {}
    void uncheckedSetDevice(c10::Device) const noexcept override {}
    c10::Stream getStream(c10::Device) const noexcept override { return c10::Stream(c10::Stream::DEFAULT, DEVICE); }
    c10::Stream getNewStream(c10::Device device, int = 0) const override { return getStream(device); }
    c10::Stream exchangeStream(c10::Stream stream) const noexcept override { return stream; }
    c10::DeviceIndex deviceCount() const noexcept override { return 1; }
    void record(void **, const c10::Stream &, const c10::DeviceIndex, const c10::EventFlag) const override {}
    void block(void *, const c10::Stream &) const override {}
    bool queryEvent(void *) const override { return true; }
    void destroyEvent(void *, const c10::DeviceIndex) const noexcept override {}
    bool queryStream(const c10::Stream &) const override { return true; }
    void synchronizeStream(const c10::Stream &) const override {}
};
namespace { C10_REGISTER_GUARD_IMPL(PrivateUse1, DeviceGuard) }

struct Hooks final : at::PrivateUse1HooksInterface {
#if SINCE(7)
    bool isBuilt() const override { return true; }
    bool isAvailable() const override { return true; }
#endif
    bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
    c10::DeviceIndex deviceCount() const override { return 1; }
    c10::DeviceIndex getCurrentDevice() const override { return 0; }
    void resizePrivateUse1Bytes(const c10::Storage &storage, size_t bytes) const override { // storage.resize_() of fully_shard
        storage.unsafeGetStorageImpl()->set_data_ptr_noswap(allocator.allocate(bytes));
        storage.unsafeGetStorageImpl()->set_nbytes(bytes);
    }
};

// A PyTorch that was built for CUDA asks CUDA for its devices even where there is no driver.
struct NoCuda final : DeviceGuard {
    c10::DeviceType type() const override { return c10::DeviceType::CUDA; }
    c10::DeviceIndex deviceCount() const noexcept override { return 0; }
};

static Hooks hooks;
static NoCuda no_cuda;
static const bool registered = [] {
    at::RegisterPrivateUse1HooksInterface(&hooks);
    c10::impl::device_guard_impl_registry[(size_t)c10::DeviceType::CUDA].store(&no_cuda);
    return true;
}();

// ---- what CUDA's kernels allocate inside themselves

static int64_t gpu_sms, gpu_threads, gpu_workspace;

static int64_t div_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
static int64_t round_up(int64_t a, int64_t b) { return div_up(a, b) * b; }
static int64_t last_pow2(int64_t n) {
    int64_t p = 1;
    while (p * 2 <= n) p *= 2;
    return p;
}

// One allocation of an op, in their order: an output, which may be larger than its shape says or lie on the host, or
// (TEMPORARY) one that is freed where the last temporaries, or all, end (END), or at the end of the op.
enum { TEMPORARY = -1, END = -2, ALL = INT32_MAX };
struct Slot {
    int output;
    int64_t bytes; // of a temporary; of an output at least; END: of how many temporaries
    bool host;
};
using Slots = std::vector<Slot>;
static Slot output(int i, int64_t at_least = 0) { return {i, at_least, false}; }
static Slot on_host(int i) { return {i, 0, true}; }
static void temporaries(Slots &slots, std::initializer_list<int64_t> sizes) {
    for (auto bytes : sizes) slots.push_back({-1, bytes, false});
}

// What a reduction takes that is split over thread blocks (ATen/native/cuda/Reduce.cuh, setReduceConfig): partial
// results, and semaphores. element: bytes of a partial result.
static void split_reduction(Slots &slots, const at::Tensor &in, const std::vector<int64_t> &dims, int64_t element) {
    if (in.numel() == 0) return;
    std::vector<bool> reduced(in.dim(), dims.empty());
    for (auto d : dims) reduced[d < 0 ? d + in.dim() : d] = true;
    int64_t outputs = 1, inputs = 1, fastest = -1, fastest_kept = -1, last = 1;
    for (int64_t d = 0; d < in.dim(); d++) {
        (reduced[d] ? inputs : outputs) *= in.size(d);
        if (in.size(d) == 1) continue;
        if (fastest < 0 || in.stride(d) <= in.stride(fastest)) fastest = d;
        if (!reduced[d] && (fastest_kept < 0 || in.stride(d) <= in.stride(fastest_kept))) fastest_kept = d;
    }
    if (fastest < 0 || inputs == 1) return;
    const bool along = reduced[fastest], dense = in.stride(fastest) == 1;
    for (int64_t d = fastest_kept; d >= 0 && !reduced[d]; d--) last *= in.size(d);
    int64_t dim0 = along ? inputs : outputs, dim1 = along ? outputs : inputs, vector = 1;
    if (dense && along && dim0 > 128 && outputs == 1) dim0 /= 4;
    else if (dense && !along) {
        vector = 4;
        while (vector > 1 && last % vector) vector /= 2;
        dim0 /= vector;
    }
    const int64_t most = 512 / vector, p0 = std::min(most, last_pow2(dim0)), p1 = std::min(most, last_pow2(dim1));
    const int64_t height = std::min(p1, most / std::min<int64_t>(p0, 32)), width = std::min(p0, most / height);
    int64_t split = along ? width : 1, outputs_of_block = along ? 1 : width;
    const auto values = [&] { return div_up(inputs, split); };
    const bool by_rows = values() >= height * 16 || values() >= 256;
    (by_rows ? split : outputs_of_block) *= height;
    const int64_t grid = div_up(outputs / vector, outputs_of_block);
    const int64_t target = gpu_sms * (gpu_threads / (width * height));
    if (!by_rows || values() < 256 || grid > target) return;
    const int64_t blocks = std::max(std::min(div_up(target, grid), div_up(values(), 16)), div_up(values(), 256));
    if (blocks > 1) temporaries(slots, {element * outputs * blocks * (along ? 1 : width * vector), 4 * grid});
}

// FlashAttention splits the keys where there is too little work otherwise: flash_api.cpp, num_splits_heuristic
static int64_t flash_splits(int64_t blocks, int64_t processors, int64_t key_blocks) {
    if ((float)blocks >= 0.8f * (float)processors) return 1;
    const int64_t most = std::min({(int64_t)128, processors, key_blocks});
    std::vector<float> efficiency;
    const auto eligible = [&](int64_t n) {
        return n == 1 || div_up(key_blocks, n) != div_up(key_blocks, n - 1);
    };
    float best = 0;
    for (int64_t n = 1; n <= most; n++) {
        const float waves = (float)(blocks * n) / (float)processors;
        efficiency.push_back(eligible(n) ? waves / std::ceil(waves) : 0);
        best = std::max(best, efficiency.back());
    }
    for (int64_t n = 1; n <= most; n++)
        if (eligible(n) && efficiency[n - 1] >= 0.85f * best) return n;
    return 1;
}

// Q, K and V are (N, heads, steps, width).
static Slots flash_forward(const at::Tensor &q, const at::Tensor &k, double dropout) {
    const int64_t heads = q.size(0) * q.size(1), steps = q.size(2), width = q.size(3);
    const int64_t rounded = round_up(width, width <= 128 ? 32 : 64), key_block = width <= 64 ? 256 : width <= 128 ? 128 : 64;
    Slots slots{output(0), output(1)};
    const int64_t blocks = heads * div_up(steps, 64), key_blocks = div_up(k.size(2), key_block);
    const int64_t splits = dropout > 0 ? 1 : flash_splits(blocks, 2 * gpu_sms, key_blocks);
    if (splits > 1) temporaries(slots, {4 * splits * heads * steps, 4 * splits * heads * steps * rounded});
    for (int i : {6, 7}) slots.push_back(SINCE(7) ? output(i) : on_host(i)); // the state of the random numbers, also where none is drawn
    return slots;
}

static Slots flash_backward(const at::Tensor &q, const at::Tensor &k) {
    const int64_t heads = q.size(0) * q.size(1), steps = round_up(q.size(2), 128), width = q.size(3);
    Slots slots{output(0), output(1), output(2)};
    temporaries(slots, {4 * heads * steps, 4 * heads * steps * round_up(width, width <= 128 ? 32 : 64)});
    const int64_t expanded = q.element_size() * heads * k.size(2) * width;
    if (q.size(1) != k.size(1)) temporaries(slots, {expanded, expanded});
    return slots;
}

// cudnn/MHA.cpp; what cuDNN takes as workspace it alone knows
static Slots cudnn_forward(bool with_sums) {
    Slots slots{output(6), output(7), output(0)};
    if (with_sums) slots.push_back(output(1));
    return slots;
}

// fp32: attention_backward.cu, delta = (grad_out * out).sum(-1).transpose(-2, -1).contiguous()
// Of grouped heads, gradients for each of the query's come first.
static Slots efficient_backward(const at::Tensor &grad, const at::Tensor &q, const at::Tensor &k, const at::Tensor &v,
                                const at::Tensor &out) {
    const int64_t rows = q.size(0) * q.size(1) * q.size(2);
    Slots slots;
    if (!grad.transpose(1, 2).is_contiguous()) temporaries(slots, {(int64_t)grad.nbytes()});
    for (int i = 0; i < 4; i++) slots.push_back(output(i));
    const int64_t keys = q.element_size() * q.size(0) * q.size(1) * k.size(2);
    if (q.size(1) != k.size(1)) temporaries(slots, {keys * q.size(3), keys * v.size(3)});
    if (q.element_size() == 4) temporaries(slots, {4 * out.numel(), 4 * rows});
    if (q.element_size() < 4 || (q.size(1) > 1 && q.size(2) > 1)) temporaries(slots, {4 * rows});
    return slots;
}

// input.expect_contiguous(): a copy of what does not lie in order, made before the results
static void ordered(Slots &slots, const at::Tensor &input) {
    if (!input.is_contiguous()) slots.insert(slots.begin(), {-1, (int64_t)input.nbytes(), false});
}

// ---- convolutions, which are cuDNN's on CUDA: all tensors of a pass lie in one memory format. ConvUtils.h
// (cudnn_conv_suggest_memory_format), cudnn/ConvShared.cpp

static at::MemoryFormat conv_format(const at::Tensor &a, const at::Tensor &b) {
    const auto last = at::MemoryFormat::ChannelsLast;
    return a.suggest_memory_format() == last || b.suggest_memory_format() == last ? last : at::MemoryFormat::Contiguous;
}

static void copy_unless(Slots &slots, const at::Tensor &t, at::MemoryFormat format) {
    if (!t.is_contiguous(format)) slots.push_back({TEMPORARY, (int64_t)t.nbytes(), false});
}

static at::Tensor in_format(const at::Tensor &t, at::MemoryFormat format) {
    return t.is_contiguous(format) ? t : at::empty(t.sizes(), t.options().device(META).memory_format(format));
}

// convolution_overrideable: input, weight, ...
static Slots convolution(const Values &args, Values &results) {
    const at::Tensor &x = args[0].toTensor(), &w = args[1].toTensor();
    const auto format = conv_format(x, w);
    Slots slots;
    copy_unless(slots, x, format);
    slots.push_back(output(0));
    copy_unless(slots, w, format);
    results[0] = in_format(results[0].toTensor(), format);
    return slots;
}

// convolution_backward_overrideable: grad, input, weight, stride, padding, dilation, transposed, output padding, groups,
// mask. The bias' gradient is a sum.
static Slots convolution_backward(const Values &args, Values &results) {
    at::Tensor grad = args[0].toTensor(), x = args[1].toTensor();
    const at::Tensor &given = args[0].toTensor(), &w = args[2].toTensor();
    const auto mask = args[9].toBoolList();
    const bool transposed = args[6].toBool();
    std::vector<Slot> held; // what is brought into a format for both passes
    const auto bring = [&](at::Tensor &t, at::MemoryFormat format) {
        if (t.is_contiguous(format)) return;
        held.push_back({TEMPORARY, (int64_t)t.nbytes(), false});
        t = in_format(t, format);
    };
    if (mask[1]) bring(x, conv_format(x, w));
    const auto wanted = x.suggest_memory_format();
    if (transposed || grad.suggest_memory_format() != wanted) bring(grad, wanted);
    Slots slots = held;
    const auto pass = [&](size_t k, at::MemoryFormat format, std::vector<at::Tensor> read, bool before) {
        Slots copies;
        for (const auto &t : read) copy_unless(copies, t, format);
        if (before) slots.insert(slots.end(), copies.begin(), copies.end());
        slots.push_back(output((int)k));
        if (!before) slots.insert(slots.end(), copies.begin(), copies.end());
        results[k] = in_format(results[k].toTensor(), format);
        slots.push_back({END, (int64_t)copies.size(), false});
    };
    if (mask[0]) pass(0, conv_format(grad, w), {w, grad}, false);
    if (mask[1]) pass(1, conv_format(x, grad), transposed ? std::vector<at::Tensor>{x, grad} : std::vector<at::Tensor>{grad, x}, true);
    if (!mask[2]) return slots;
    std::vector<int64_t> dims{0};
    for (int64_t d = 2; d < given.dim(); d++) dims.push_back(d);
    slots.push_back({END, ALL, false});
    slots.push_back(output(2));
    split_reduction(slots, given, dims, 4);
    return slots;
}

static bool is_given(const c10::IValue &value) { return value.isTensor() && value.toTensor().defined(); }

// native_group_norm: input, weight, bias, N, C, HxW, group
static void group_norm(Slots &slots, const Values &args) {
    const int64_t each = 4 * args[3].toInt() * args[4].toInt();
    if (args[5].toInt() > 1 && is_given(args[1])) temporaries(slots, {each, each});
}

// native_group_norm_backward: grad, input, mean, rstd, weight, N, C, HxW, group, output_mask
static void group_norm_backward(Slots &slots, const Values &args) {
    const int64_t channels = 4 * args[5].toInt() * args[6].toInt(), groups = 4 * args[5].toInt() * args[8].toInt();
    const bool flat = args[7].toInt() == 1;
    if (!flat) temporaries(slots, {channels, channels});
    if (args[9].toBoolList()[0]) temporaries(slots, {groups, groups});
    if (!flat && args[9].toBoolList()[0] && is_given(args[4])) temporaries(slots, {channels});
}

static std::vector<int64_t> dims_of(const Values &args) {
    if (args.size() > 1 && args[1].isIntList()) return args[1].toIntVector();
    return args.size() > 1 && args[1].isInt() ? std::vector<int64_t>{args[1].toInt()} : std::vector<int64_t>{};
}

static Slots outputs_in_order(size_t count) {
    Slots slots;
    for (size_t i = 0; i < count; i++) slots.push_back(output((int)i));
    return slots;
}

// A loss of all elements, and its sum or mean: args are input, target, ..., reduction
static Slots element_loss(const std::string &name, const Values &args, const at::Tensor &result) {
    const auto reduction = name == "aten::binary_cross_entropy" ? args[3].toInt() : args[2].toInt();
    if (reduction == at::Reduction::None) return {output(0)};
    const auto &input = args[0].toTensor();
    const int64_t all = input.numel() * result.element_size();
    Slots slots;
    if (name == "aten::huber_loss") slots = {{-1, all, false}, output(0)};
    else if (name == "aten::binary_cross_entropy") slots = {output(0, all), {-1, result.element_size(), false}};
    else slots = {output(0, all), {-1, all, false}};
    split_reduction(slots, input, {}, 4);
    return slots;
}

// fully_shard's copies: a kernel for all tensors, which is told of them in numbers of 8 bytes (cuda/TensorShape.cu)
static const int64_t COPY_BLOCK = 128 * 16; // bytes: BLOCK_SIZE, BYTES_PER_THREAD

static void split_with_sizes_copy(Slots &slots, const at::Tensor &self, const std::vector<int64_t> &sizes) {
    const int64_t chunks = self.size(0), bytes = self.element_size(), most = gpu_sms * gpu_threads / 128 * 2;
    int64_t blocks = 0, packed = 0;
    for (int64_t n : sizes) blocks += div_up(n * bytes, COPY_BLOCK);
    const int64_t turns = div_up(blocks * chunks, most);
    const int64_t of_block = std::min((int64_t)std::ceil(std::sqrt(turns)), chunks), each = div_up(turns, of_block);
    for (int64_t n : sizes) packed += div_up(n * bytes, COPY_BLOCK * each);
    temporaries(slots, {8 * (4 * (int64_t)sizes.size() + 1 + packed)});
}

static void chunk_cat(Slots &slots, const std::vector<at::Tensor> &tensors, int64_t chunks, const at::Tensor &out) {
    int64_t blocks = 0;
    for (const auto &t : tensors) blocks += div_up(div_up(t.size(0), chunks) * (t.numel() / t.size(0)) * out.element_size(), COPY_BLOCK);
    temporaries(slots, {8 * (6 * (int64_t)tensors.size() + 2 + blocks)});
}

// What the op allocates, in this order. args: what it was called with; results: on the meta device, where a convolution's are
// replaced by ones in the memory format that CUDA gives them
static Slots slots_of(const std::string &name, const Values &args, Values &results) {
    static thread_local int64_t workspace_of = -1;
    Slots slots = outputs_in_order(results.size());
    const auto tensor = [&](size_t i) -> const at::Tensor & { return args[i].toTensor(); };
    if (name == "aten::sum" || name == "aten::mean" || name == "aten::amax" || name == "aten::max") {
        if (tensor(0).device().type() == FAKE && !(args.size() > 1 && args[1].isTensor()))
            split_reduction(slots, tensor(0), dims_of(args), name == "aten::max" ? 16 : 4);
    } else if (name == "aten::convolution_overrideable") slots = convolution(args, results);
    else if (name == "aten::convolution_backward_overrideable") slots = convolution_backward(args, results);
    else if (name == "aten::mse_loss_backward") // Loss.cpp: zeros in order
        results[0] = in_format(results[0].toTensor(), at::MemoryFormat::Contiguous);
    else if (name == "aten::split_with_sizes_copy") split_with_sizes_copy(slots, tensor(0), args[1].toIntVector());
    else if (name == "aten::_chunk_cat") chunk_cat(slots, args[0].toTensorVector(), args[2].toInt(), tensor(3));
    else if (name == "aten::native_dropout") slots = {output(1), output(0)};
    else if (name == "aten::log_sigmoid_forward") slots = {output(0)}; // the buffer is the CPU's alone
    else if (name == "aten::mse_loss" || name == "aten::smooth_l1_loss" || name == "aten::huber_loss" ||
             name == "aten::binary_cross_entropy") slots = element_loss(name, args, results[0].toTensor());
    else if (name == "aten::native_layer_norm" || name == "aten::_fused_rms_norm") ordered(slots, tensor(0));
    else if (name == "aten::native_layer_norm_backward" || name == "aten::_fused_rms_norm_backward") ordered(slots, tensor(1));
    else if (name == "aten::native_group_norm") group_norm(slots, args);
    else if (name == "aten::native_group_norm_backward") group_norm_backward(slots, args);
    else if (name == "aten::_scaled_dot_product_efficient_attention")
        slots = {output(0), output(1), on_host(2), on_host(3)};
    else if (name == "aten::_scaled_dot_product_efficient_attention_backward")
        slots = efficient_backward(tensor(0), tensor(1), tensor(2), tensor(3), tensor(5));
    else if (name == "aten::_scaled_dot_product_cudnn_attention") slots = cudnn_forward(args[4].toBool());
    else if (name == "aten::_scaled_dot_product_flash_attention")
        slots = flash_forward(tensor(0), tensor(1), args[3].toDouble());
    else if (name == "aten::_scaled_dot_product_flash_attention_backward") slots = flash_backward(tensor(1), tensor(2));
    else if (name == "aten::_foreach_norm") { // ForeachReduceOp.cu: a partial norm for each 65536 elements of the longest
        int64_t longest = 0, count = 0;
        for (const at::Tensor &t : args[0].toTensorVector()) longest = std::max(longest, t.numel()), count++;
        slots.insert(slots.begin(), {-1, 4 * count * div_up(longest, 65536), false});
    } else if (name == "aten::mm" || name == "aten::bmm" || name == "aten::addmm" || name == "aten::baddbmm") {
        // cuBLAS's workspace: one for each thread that computes a product, for good
        if (workspace_of != run && recording && gpu_workspace) slots.push_back({-1, -gpu_workspace, false});
        workspace_of = run;
    }
    return slots;
}

// ---- ops, by way of the meta device

static at::Tensor shell(c10::Storage storage, c10::DispatchKey key, const at::Tensor &like) {
    auto made = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), like.dtype());
    auto *impl = made.unsafeGetTensorImpl();
    impl->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
    if (like.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
    return made;
}

// Tensors of this device and of the meta device that stand for each other during one op
struct Twins {
    std::vector<std::pair<c10::Storage, c10::Storage>> storages;  // (fake, meta)
    std::vector<std::pair<at::Tensor, at::Tensor>> tensors;       // (fake, meta)

    at::Tensor meta(const at::Tensor &t) {
        if (!t.defined()) return t;
        if (t.device().type() != FAKE) // the host's: numbers stay as they are
            return t.dim() == 0 ? t : at::empty_strided(t.sizes(), t.strides(), t.options().device(META));
        for (auto &pair : tensors) if (pair.first.is_same(t)) return pair.second;
        auto made = shell(meta_storage(t.storage()), c10::DispatchKey::Meta, t);
        tensors.emplace_back(t, made);
        return made;
    }

    at::Tensor fake(const at::Tensor &m, int64_t at_least) {
        if (!m.defined() || m.device().type() != c10::DeviceType::Meta) return m;
        for (auto &pair : tensors) if (pair.second.is_same(m)) return pair.first;
        for (auto &pair : storages) if (pair.second.is_alias_of(m.storage())) return shell(pair.first, c10::DispatchKey::PrivateUse1, m);
        const size_t bytes = std::max((size_t)at_least, m.storage().nbytes());
        c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, allocator.allocate(bytes), &allocator, true);
        storages.emplace_back(storage, m.storage());
        auto made = shell(storage, c10::DispatchKey::PrivateUse1, m);
        tensors.emplace_back(made, m);
        return made;
    }

private:
    c10::Storage meta_storage(const c10::Storage &storage) {
        for (auto &pair : storages) if (pair.first.is_alias_of(storage)) return pair.second;
        c10::Storage made(c10::Storage::use_byte_size_t(), storage.nbytes(), at::DataPtr(nullptr, META),
                          c10::GetAllocator(c10::DeviceType::Meta), true);
        storages.emplace_back(storage, made);
        return made;
    }
};

static c10::IValue meta_of(Twins &twins, const c10::IValue &value) {
    if (value.isTensor()) return twins.meta(value.toTensor());
    if (value.isTensorList()) {
        std::vector<at::Tensor> list;
        for (const at::Tensor &t : value.toTensorVector()) list.push_back(twins.meta(t));
        return list;
    }
    if (value.isOptionalTensorList()) {
        c10::List<std::optional<at::Tensor>> list;
        for (std::optional<at::Tensor> t : value.toOptionalTensorList())
            list.push_back(t ? std::optional(twins.meta(*t)) : t);
        return list;
    }
    return value.isDevice() && value.toDevice().type() == FAKE ? c10::IValue(META) : value;
}

static c10::IValue fake_of(Twins &twins, const c10::IValue &value, int64_t at_least = 0) {
    if (value.isTensor()) return twins.fake(value.toTensor(), at_least);
    if (!value.isTensorList()) return value;
    std::vector<at::Tensor> list;
    for (const at::Tensor &t : value.toTensorVector()) list.push_back(twins.fake(t, 0));
    return list;
}

// Replaces the arguments on the stack by the results.
static void run_on_meta(const c10::OperatorHandle &op, Values &stack) {
    static auto convolution = c10::Dispatcher::singleton().findSchemaOrThrow("aten::convolution", "");
    static auto backward = c10::Dispatcher::singleton().findSchemaOrThrow("aten::convolution_backward", "");
    const auto &name = op.schema().name();
    if (name == "aten::convolution_overrideable") convolution.callBoxed(&stack);
    else if (name == "aten::convolution_backward_overrideable") { // which isn't told the bias' size
        stack.insert(stack.begin() + 3, c10::IValue(std::vector<int64_t>{stack[0].toTensor().size(1)}));
        backward.callBoxed(&stack);
    } else op.callBoxed(&stack);
}

// What was written to may have another size now.
static void resize_written(const std::vector<std::pair<at::Tensor, at::Tensor>> &given) {
    for (const auto &[t, m] : given) {
        if (t.sizes() == m.sizes() && t.strides() == m.strides()) continue;
        auto *storage = t.storage().unsafeGetStorageImpl();
        if (storage->nbytes() < m.storage().nbytes()) {
            storage->set_data_ptr_noswap(allocator.allocate(m.storage().nbytes()));
            storage->set_nbytes(m.storage().nbytes());
        }
        t.unsafeGetTensorImpl()->set_sizes_and_strides(m.sizes(), m.strides(), m.storage_offset());
    }
}

static Values made_in_order(Twins &twins, const Slots &slots, const Values &results) {
    Values made(results.size());
    std::vector<int64_t> inside;
    const auto end = [&](int64_t count) {
        for (; count > 0 && !inside.empty(); count--, inside.pop_back()) write_death((void *)inside.back());
    };
    for (const Slot &slot : slots) {
        if (slot.output >= 0 && slot.host) made[slot.output] = at::empty({}, at::kLong);
        else if (slot.output >= 0) made[slot.output] = fake_of(twins, results[slot.output], slot.bytes);
        else if (slot.output == END) end(slot.bytes);
        else if (recording && slot.bytes < 0) write_birth(-slot.bytes); // and never freed
        else if (recording && slot.bytes > 0) inside.push_back(write_birth(slot.bytes));
    }
    end(ALL);
    for (size_t i = 0; i < results.size(); i++) // what CUDA leaves empty
        if (made[i].isNone() && !results[i].isNone())
            made[i] = results[i].isTensor() && results[i].toTensor().defined()
                ? c10::IValue(at::empty({0}, results[i].toTensor().options().device(DEVICE))) : results[i];
    return made;
}

static void boxed(const c10::OperatorHandle &op, torch::jit::Stack *stack) {
    const auto &schema = op.schema();
    const auto &name = schema.name();
    const size_t n = schema.arguments().size();
    const Values args(stack->end() - (int64_t)n, stack->end());
    stack->erase(stack->end() - (int64_t)n, stack->end());
    if (name == "aten::_local_scalar_dense") { // what the host reads: no infinity for GradScaler, and of counters 1
        stack->push_back(c10::Scalar(args[0].toTensor().is_floating_point() ? 0 : 1));
        return;
    }
    if (name == "aten::_copy_from" || name == "aten::_copy_from_and_resize") {
        stack->push_back(args[1]);
        return;
    }
    if (!name.compare(0, 12, "aten::_fused") && schema.returns().empty()) return; // an optimizer's: in place
    Twins twins;
    Values results;
    for (const auto &value : args) results.push_back(meta_of(twins, value));
    const auto given = twins.tensors;
    run_on_meta(op, results);
    resize_written(given);
    const Slots slots = slots_of(name, args, results);
    for (auto &value : made_in_order(twins, slots, results)) stack->push_back(std::move(value));
}

// Ops for which CUDA has kernels; elsewhere they are made of other ops.
static const char *const KERNELS[] = {
    "native_layer_norm", "native_layer_norm_backward", "native_group_norm", "native_group_norm_backward",
    "_fused_rms_norm", "_fused_rms_norm_backward", "native_dropout", "native_dropout_backward", "silu_backward",
    "mish_backward", "_foreach_norm.Scalar", "convolution_overrideable", "convolution_backward_overrideable",
    "_scaled_dot_product_efficient_attention", "_scaled_dot_product_efficient_attention_backward",
    "_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_backward",
    "_scaled_dot_product_cudnn_attention", "_scaled_dot_product_cudnn_attention_backward", "split_with_sizes_copy.out",
    "_chunk_cat.out",
};
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
    for (const char *name : KERNELS) m.impl(name, torch::CppFunction::makeFromBoxedFunction<&boxed>());
}
TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&boxed>()); }

// CUDA's softmax makes fp32 of fp16 itself (SoftMax.cpp).
static bool is_widened(const at::Tensor &x, std::optional<at::ScalarType> type) {
    return x.scalar_type() == at::kHalf && type == at::kFloat;
}
static at::Tensor softmax(const at::Tensor &x, int64_t dim, std::optional<at::ScalarType> type) {
    return is_widened(x, type) ? at::_softmax(x, dim, true) : at::native::softmax(x, dim, type);
}
static at::Tensor log_softmax(const at::Tensor &x, int64_t dim, std::optional<at::ScalarType> type) {
    return is_widened(x, type) ? at::_log_softmax(x, dim, true) : at::native::log_softmax(x, dim, type);
}
TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) {
    m.impl("softmax.int", &softmax);
    m.impl("log_softmax.int", &log_softmax);
}

// ---- attention

// check_attn_mask_shape: what cuDNN takes
static bool is_plain(const std::optional<at::Tensor> &mask) {
    return !mask || ((mask->dim() == 2 || mask->dim() == 4) && !mask->requires_grad());
}

// As sdp_utils.cpp chooses on a GPU of compute capability 8.0, among those that sdpa_kernel() leaves.
static int64_t choose_attention(const at::Tensor &q, const at::Tensor &k, const at::Tensor &v,
                                const std::optional<at::Tensor> &mask, double, bool is_causal, std::optional<double>, bool) {
    const auto &context = at::globalContext();
    const bool half = q.element_size() == 2, grouped = q.size(-3) != k.size(-3);
    const auto width = q.size(-1), of_values = v.size(-1);
    const int64_t aligned = half ? 8 : 4;
    const auto is_multiple = [&](int64_t n) { return width % n == 0 && of_values % n == 0; };
    if (context.userEnabledFlashSDP() && half && !mask && width == of_values && width <= 256 &&
        !(is_causal && q.size(-2) != k.size(-2))) return (int64_t)sdp::SDPBackend::flash_attention;
    if (context.userEnabledMemEfficientSDP() && is_multiple(aligned) && (SINCE(14) || !grouped))
        return (int64_t)sdp::SDPBackend::efficient_attention;
    if (context.userEnabledMathSDP()) return (int64_t)sdp::SDPBackend::math;
    TORCH_CHECK(context.userEnabledCuDNNSDP() && half && is_multiple(8) && std::max(width, of_values) <= 128 && k.size(-2) > 1 &&
                is_plain(mask),
                "No available kernel. Aborting execution.");
    return (int64_t)sdp::SDPBackend::cudnn_attention;
}
namespace at::native { REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &choose_attention) }

static at::Tensor padded(const at::Tensor &t) {
    return t.size(-1) % 8 ? at::pad(t, {0, 8 - t.size(-1) % 8}) : t;
}

// PyTorch's own takes flash attention for the CPU's on devices that it doesn't know.
static at::Tensor attention(const at::Tensor &q, const at::Tensor &k, const at::Tensor &v,
                            const std::optional<at::Tensor> &mask, double dropout, bool is_causal,
                            std::optional<double> scale, bool grouped) {
    if (choose_attention(q, k, v, mask, dropout, is_causal, scale, grouped) != (int64_t)sdp::SDPBackend::flash_attention)
        return at::native::scaled_dot_product_attention(q, k, v, mask, dropout, is_causal, scale, grouped);
    const auto width = q.size(-1);
    const auto wide_q = padded(q), wide_k = padded(k), wide_v = padded(v);
    const auto made = at::_scaled_dot_product_flash_attention(
        wide_q, wide_k, wide_v, dropout, is_causal, false, scale ? *scale : 1 / std::sqrt((double)width));
    return width % 8 ? std::get<0>(made).slice(-1, 0, width) : std::get<0>(made);
}
TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) { m.impl("scaled_dot_product_attention", &attention); }

// ---- recurrent layers, in the order of ATen/native/cudnn/RNN.cpp

struct Rnn {
    int64_t mode, inputs, units, layers, directions, steps, samples, bytes;
    bool dropout, batch_first, train;
    int64_t gates() const { return mode == 2 ? 4 : mode == 3 ? 3 : 1; } // cuDNN's modes: ReLU, tanh, LSTM, GRU
    int64_t weights() const {
        int64_t n = 0;
        for (int64_t l = 0; l < layers; l++)
            n += directions * gates() * units * ((l ? directions * units : inputs) + units + 2);
        return n;
    }
    int64_t workspace() const {
        const int64_t row = inputs + directions * units * (1 + gates());
        return 8 * 1024 * 1024 * layers * directions + (weights() + steps * samples * row) * bytes;
    }
    int64_t reserve() const {
        const int64_t one = steps * samples * units * directions;
        int64_t n = 256 + round_up(layers * one * bytes * (mode == 3 ? 6 : gates()), 32);
        if (mode == 2) n += round_up(layers * one * bytes, 32);
        n += round_up((layers - 1) * one * bytes, 32);
        return dropout ? n + (layers - 1) * round_up(div_up(directions * one, 8), 32) : n;
    }
};

static Rnn rnn_of(const at::Tensor &x, int64_t mode, int64_t units, int64_t layers, bool batch_first, double dropout,
                  bool train, bool bidirectional) {
    return {mode, x.size(2), units, layers, bidirectional ? 2 : 1, x.size(!batch_first ? 0 : 1), x.size(batch_first ? 0 : 1),
            (int64_t)x.element_size(), train && layers > 1 && dropout > 0, batch_first, train};
}

static at::Tensor rnn_bytes(const at::Tensor &x, int64_t n) { return at::empty({n}, x.options().dtype(at::kByte)); }
static at::Tensor turned(const Rnn &r, const at::Tensor &t) { return r.batch_first ? t.transpose(0, 1) : t; }
static at::Tensor turned_back(const Rnn &r, at::Tensor t) { return r.batch_first ? t.transpose_(0, 1) : t; }

using OptionalTensor = const std::optional<at::Tensor> &;

static std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> rnn_forward(
    const at::Tensor &input, at::TensorList, int64_t, OptionalTensor weights, const at::Tensor &hx, OptionalTensor cx,
    int64_t mode, c10::SymInt units, c10::SymInt, int64_t layers, bool batch_first, double dropout, bool train,
    bool bidirectional, c10::SymIntArrayRef, OptionalTensor) {
    const Rnn r = rnn_of(input, mode, units.expect_int(), layers, batch_first, dropout, train, bidirectional);
    const at::Tensor x = turned(r, input).contiguous();
    at::Tensor y = at::empty({r.steps, r.samples, r.directions * r.units}, x.options());
    const at::Tensor hy = at::empty(hx.sizes(), hx.options());
    const at::Tensor cy = cx ? at::empty(cx->sizes(), cx->options()) : at::empty({0}, hx.options());
    const at::Tensor workspace = rnn_bytes(x, r.workspace()), reserve = rnn_bytes(x, r.train ? r.reserve() : 0);
    return {turned_back(r, y), hy, cy, reserve, *weights};
}

static std::tuple<at::Tensor, at::Tensor, at::Tensor> rnn_backward_input(
    const Rnn &r, const at::Tensor &input, const at::Tensor &hx, OptionalTensor cx, const at::Tensor &grad) {
    const at::Tensor turned_input = turned(r, input), x = turned_input.contiguous(), dy = turned(r, grad).contiguous();
    const at::Tensor dx = at::empty_like(turned_input, at::MemoryFormat::Contiguous);
    const at::Tensor dhx = at::empty(hx.sizes(), hx.options()), dcx = cx ? at::empty(cx->sizes(), cx->options()) : at::Tensor();
    const at::Tensor workspace = rnn_bytes(x, r.workspace());
    return {turned_back(r, dx), dhx, dcx};
}

static std::vector<at::Tensor> rnn_backward_weight(const Rnn &r, const at::Tensor &input, at::TensorList weight) {
    const at::Tensor x = turned(r, input).contiguous(), dw = at::zeros({r.weights()}, x.options());
    const at::Tensor workspace = rnn_bytes(x, r.workspace());
    std::vector<at::Tensor> parts;
    for (const at::Tensor &w : weight) parts.push_back(dw.narrow(0, 0, w.numel()).view(w.sizes()));
    return parts;
}

static std::tuple<at::Tensor, at::Tensor, at::Tensor, std::vector<at::Tensor>> rnn_backward(
    const at::Tensor &input, at::TensorList weight, int64_t, const at::Tensor &, const at::Tensor &hx, OptionalTensor cx,
    const at::Tensor &y, OptionalTensor grad, OptionalTensor grad_hy, OptionalTensor grad_cy, int64_t mode, c10::SymInt units,
    c10::SymInt, int64_t layers, bool batch_first, double dropout, bool train, bool bidirectional, c10::SymIntArrayRef,
    OptionalTensor, const at::Tensor &, std::array<bool, 4> mask) {
    const Rnn r = rnn_of(input, mode, units.expect_int(), layers, batch_first, dropout, train, bidirectional);
    const at::Tensor dy = grad && grad->defined() ? *grad : at::zeros_like(y);
    const at::Tensor dhy = grad_hy && grad_hy->defined() ? *grad_hy : at::zeros_like(hx);
    const bool has_cx = cx && cx->defined();
    const at::Tensor dcy = !has_cx ? at::Tensor() : grad_cy && grad_cy->defined() ? *grad_cy : at::zeros_like(*cx);
    auto [dx, dhx, dcx] = rnn_backward_input(r, input, hx, has_cx ? cx : std::nullopt, dy);
    std::vector<at::Tensor> dw;
    if (mask[3]) dw = rnn_backward_weight(r, input, weight);
    return {dx, dhx, dcx, dw};
}

// Under autocast: ATen/cudnn/AutocastRNN.cpp
static std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> rnn_autocast(
    const at::Tensor &input, at::TensorList weight, int64_t stride0, OptionalTensor, const at::Tensor &hx, OptionalTensor cx,
    int64_t mode, c10::SymInt units, c10::SymInt projected, int64_t layers, bool batch_first, double dropout, bool train,
    bool bidirectional, c10::SymIntArrayRef batches, OptionalTensor state) {
    c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::DispatchKey::AutocastPrivateUse1);
    const Rnn r = rnn_of(input, mode, units.expect_int(), layers, batch_first, dropout, train, bidirectional);
    const at::Tensor buffer = at::zeros({r.weights()}, weight[0].options().dtype(at::kHalf));
    std::vector<at::Tensor> parts;
    for (const at::Tensor &w : weight) {
        at::Tensor part = shell(buffer.storage(), c10::DispatchKey::PrivateUse1,
                                at::empty({w.numel(), 1}, buffer.options().device(META)));
        part.copy_(w.view_as(part));
        parts.push_back(part);
    }
    const auto half = [](const at::Tensor &t) { return at::autocast::cached_cast(at::kHalf, t, FAKE); };
    const std::optional<at::Tensor> low_cx = cx ? std::optional(half(*cx)) : std::nullopt;
    const at::Tensor low_hx = half(hx), low = half(input);
    return at::_cudnn_rnn_symint(low, parts, stride0, buffer, low_hx, low_cx, mode, units, projected, layers, batch_first,
                                 dropout, train, bidirectional, batches, state);
}
TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) { m.impl("_cudnn_rnn", &rnn_autocast); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
    m.impl("_cudnn_rnn", &rnn_forward);
    m.impl("_cudnn_rnn_backward", &rnn_backward);
}

// ---- autocast, by CUDA's lists

namespace at::autocast {
#define LOW(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define WIDE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define WIDE_TYPE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
static Tensor binary_cross_entropy_banned(const Tensor &, const Tensor &, const std::optional<Tensor> &, int64_t) {
    TORCH_CHECK(false, "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.");
}
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
    AT_FORALL_LOWER_PRECISION_FP(LOW)
    AT_FORALL_FP32(WIDE)
    AT_FORALL_FP32_SET_OPT_DTYPE(WIDE_TYPE)
    AT_FORALL_PROMOTE(PROMOTE)
    m.impl("binary_cross_entropy", &binary_cross_entropy_banned);
}
}

// ---- for fakegpu.py

extern "C" {
void fg_start(void) {
    at::addGlobalCallback(at::RecordFunctionCallback(op_begins, op_ends)
        .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
}
void fg_gpu(int64_t sms, int64_t threads, int64_t workspace) {
    gpu_sms = sms;
    gpu_threads = threads;
    gpu_workspace = workspace;
}
void fg_clear(void) {
    std::lock_guard<std::mutex> hold(guard);
    events.clear();
    first_id = next_id;
    run++;
}
void fg_enter(const char *layer) { layers.push_back(layer); }
void fg_leave(void) { layers.pop_back(); }
int64_t fg_count(void) { return (int64_t)events.size(); }
void fg_event(int64_t i, int64_t *id, int64_t *bytes) {
    *id = events[(size_t)i].id - first_id + 1;
    *bytes = events[(size_t)i].bytes;
}
const char *fg_ops(int64_t i) { return texts[(size_t)events[(size_t)i].ops].c_str(); }
const char *fg_layer(int64_t i) { return texts[(size_t)events[(size_t)i].layer].c_str(); }
}
