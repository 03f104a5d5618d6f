/* Several ranks train as one, on the CPU and on emulated GPUs: N ranks of a batch each give the losses and weights of one rank that accumulates N batches, bit
 * for bit in fp32 where no rank sums up batches of its own, else to rounding. On every rank what is predicted is measured,
 * to the byte. Ranks are processes of this test (fork_comm.h). */
#include <stdlib.h>

#include "fork_comm.h"
#include "run/runtime.h"
#include "tap.h"
#include "unit/nets.h"

enum { STEPS = 4, NUMBERS = 1 << 20, WORDS = 160 /* of the networks that have a vocabulary */ };

#define CE "CrossEntropyLoss"
#define NET_IMAGES \
    "Sequential{Conv2d(3, 16, 3, padding=1) BatchNorm2d(16) ReLU MaxPool2d(2) Checkpoint{Sequential{Conv2d(16, 32, 3)" \
    " GELU Dropout(0.2)}} Flatten Linear(512, 24) Tanh Linear(24, 10)}"
#define NET_GATED \
    "Sequential{Linear(6, 64) GLU Residual{Graph{RMSNorm(32) Linear(32, 64, bias=false)<0> Linear(32, 32, bias=false)<0>" \
    " Linear(32, 32, bias=false)<0> RotaryPositionalEmbeddings(16, interleaved=false)<1>" \
    " RotaryPositionalEmbeddings(16, interleaved=false)<2>" \
    " ScaledDotProductAttention(num_heads=4, is_causal=true, enable_gqa=true)<4,5,3>" \
    " Linear(64, 32, bias=false)<6>}} Residual{Graph{RMSNorm(32) Linear(32, 48, bias=false)<0> SiLU<1>" \
    " Linear(32, 48, bias=false)<0> Mul<2,3> Linear(48, 32, bias=false)<4>}} Select(1, -1) Linear(32, 10)}"
#define NET_RECURRENT "Sequential{LSTM(6, 24, num_layers=2, batch_first=true) Select(1, -1) Linear(24, 10)}"

static const struct { const char *name, *text; Shape input; } nets[] = {
    {"a perceptron", "Sequential{Linear(20, 64) ReLU Linear(64, 48) ReLU Linear(48, 10)}", {2, {4, 20, 1, 1}}},
    {"images", NET_IMAGES, {4, {3, 3, 12, 12}}},
    {"a tied head", "Sequential{Embedding(160, 16) Linear(16, 160, bias=false)& Flatten(0, 1)}", {2, {2, 6, 1, 1}}},
    {"a gated transformer", NET_GATED, {3, {3, 5, 6, 1}}},
    {"an LSTM", NET_RECURRENT, {3, {3, 5, 6, 1}}},
    {"a frozen layer", "Sequential{Linear(20, 64)! ReLU Linear(64, 48) ReLU Linear(48, 10)}", {2, {4, 20, 1, 1}}},
};

/* What one training gives. */
typedef struct Result {
    float loss[STEPS];
    int64_t n;               /* numbers of all parameters */
    size_t peak, predicted, weights, optimizer;
    size_t sent[MESH_AXES];       /* to the others along each axis, in all steps */
    Transfer transfer[MESH_AXES]; /* predicted, of a step */
    char problem[256];
    float number[NUMBERS];
} Result;

typedef struct Training { const char *device; const Network *net; Settings s; Result *result; } Training; /* result[s.world] */

typedef struct Fed { const Program *p; int world, rank; } Fed;

/* Micro-batch m of rank r is micro-batch m world + r of one rank. */
static int feed(void *arg, uint32_t step, uint32_t micro, float *x, void *t, Err *e) {
    const Fed *f = arg;
    Program one = *f->p;
    const uint32_t first = step * (uint32_t)(one.micro_batches * one.fed) + micro;
    one.micro_batches = 1;
    const int code = net_feed(&one, first * (uint32_t)f->world + (uint32_t)f->rank, 0, x, t, e);
    if (one.bufs[one.inputs[0]].dtype != DT_I32) return code;
    /* over all words of the vocabulary, which ranks may divide */
    for (int64_t i = 0; i < shape_elements(&one.bufs[one.inputs[0]].shape); i++) x[i] = (float)((int)(x[i] * 23) % WORDS);
    for (int64_t i = 0; i < shape_elements(&one.bufs[one.target].shape); i++) ((int32_t *)t)[i] *= WORDS / 10;
    return code;
}

static int read_parameters(Runtime *r, const Network *net, Result *out, Err *e) {
    int code = OK;
    out->n = 0;
    for (int i = 0; i < net->n_params && !code; i++) {
        const int64_t n = shape_elements(&net->params[i].shape);
        /* each rank has statistics of its own batches, as in PyTorch */
        if (strstr(net->params[i].name, "running_") || strstr(net->params[i].name, "num_batches")) continue;
        if (out->n + n > NUMBERS) return err_set(e, ERR_INTERNAL, "too many parameters for the test");
        code = runtime_read(r, 0, net->params[i].name, &out->number[out->n], e);
        out->n += n;
    }
    return code;
}

static int train_steps(Runtime *r, const Training *t, const Program *p, Comm *const *comm, Result *out, Err *e) {
    Fed fed = {p, p->world, p->rank};
    int code = OK;
    for (int i = 0; i < STEPS && !code; i++) {
        StepResult step;
        code = runtime_step(r, 0, feed, &fed, &step, e);
        out->loss[i] = step.loss;
    }
    out->peak = runtime_ledger(r)->peak.held;
    out->weights = runtime_ledger(r)->category[CAT_WEIGHTS];
    out->optimizer = runtime_ledger(r)->category[CAT_OPTIMIZER];
    for (int axis = 0; axis < MESH_AXES; axis++)
        out->sent[axis] = comm[axis] ? ((ForkComm *)comm[axis])->shared->sent[comm[axis]->rank] : 0;
    return code ? code : read_parameters(r, t->net, out, e);
}

/* The device of this rank, as mpirun's environment would say it, in the company of the others. */
static int open_device(const char *name, int rank, Comm *const comm[MESH_AXES], Device **out, Err *e) {
    char own[DEVICE_NAME], local[16];
    int world = 1;
    snprintf(local, sizeof local, "%d", rank);
    setenv("OMPI_COMM_WORLD_LOCAL_RANK", local, 1);
    *out = NULL;
    for (int axis = 0; axis < MESH_AXES; axis++) world *= comm[axis] ? comm[axis]->world : 1;
    int code = device_of_rank(name, world, own, e);
    if (!code) code = device_open(own, out, e);
    for (int axis = 0; axis < MESH_AXES && !code; axis++)
        if (comm[axis]) code = device_join(*out, (MeshAxis)axis, comm[axis], e);
    return code;
}

/* The training, or one rank of it. */
static int train(int rank, Comm *const comm[MESH_AXES], void *arg) {
    const Training *t = arg;
    Result *out = &t->result[rank];
    Settings s = t->s;
    Device *device;
    Program *p = NULL;
    Runtime *r = NULL;
    Prediction found;
    Err e = {0, ""};
    s.rank = rank;
    int code = open_device(t->device, rank, comm, &device, &e);
    if (!code) code = compile(t->net, &s, device, NULL, NULL, &p, &e);
    const Job job = {t->net, p};
    if (!code) code = predict(&job, 1, s.allocator, device, 0, &(Call){0, PART_WHOLE}, 1, STEPS, &found, &e);
    if (!code) code = runtime_open(device, s.allocator, 0, &job, 1, 7, 0, &r, &e);
    if (!code) {
        out->predicted = found.peak.held;
        for (int axis = 0; axis < MESH_AXES; axis++) out->transfer[axis] = program_transfer(p, (MeshAxis)axis);
        code = train_steps(r, t, p, comm, out, &e);
    }
    const int closed = runtime_close_checked(r, code ? NULL : &e);
    snprintf(out->problem, sizeof out->problem, "%s", code || closed ? e.text : "");
    program_free(p);
    device_close(device);
    return code ? code : closed;
}

/* The largest difference of two trainings' losses and parameters, beside the size of the numbers. */
static double difference(const Result *a, const Result *b) {
    double most = a->n == b->n ? 0 : INFINITY;
    for (int i = 0; i < STEPS; i++) most = fmax(most, fabs((double)a->loss[i] - (double)b->loss[i]) / (1 + fabs((double)b->loss[i])));
    for (int64_t i = 0; i < a->n && i < b->n; i++) {
        const double d = fabs((double)a->number[i] - (double)b->number[i]);
        most = fmax(most, d == d ? d / (1 + fabs((double)b->number[i])) : INFINITY);
    }
    return most;
}

static Result *results, *alone;

/* How near must the ranks come to one rank with world times the micro-batches? With one micro-batch for each rank fp32 adds the
 * same numbers in the same order. */
static double tolerance(const char *device, const Settings *s) {
    const PrecisionInfo *info = precision_info(s->precision);
    const bool cpu = !strcmp(device, "cpu"); /* another device's kernels round 16-bit numbers elsewhere */
    if (s->mesh.tensor > 1) return info->low == DT_F32 ? 2e-5 : 2e-2;
    /* a cut lies between ops of which one rank makes one, without rounding to 16 bits between them */
    if (s->mesh.pipeline > 1 && info->low != DT_F32 && info->weights == DT_F32) return 1e-3;
    const bool one_order = s->accumulate == 1 || s->mesh.pipeline == s->world;
    if (cpu && info->weights == DT_F32 && one_order && s->optimizer.rule.clip_norm == 0.0f) return 0;
    return info->weights != DT_F32 ? 2e-2 : cpu || info->low == DT_F32 ? 2e-5 : 5e-4;
}

static bool same_everywhere(int world) {
    for (int r = 1; r < world; r++)
        if (difference(&results[r], &results[0]) > 0) return false;
    return true;
}

static bool as_predicted(int world) {
    for (int r = 0; r < world; r++)
        if (results[r].peak != results[r].predicted || !results[r].peak) return false;
    return true;
}

/* Each rank has sent as many bytes along the axis as predicted, and what all send together all receive. */
static bool sent_as_predicted(int world, MeshAxis axis) {
    int64_t sent = 0, received = 0;
    for (int r = 0; r < world; r++) {
        if ((int64_t)results[r].sent[axis] != STEPS * results[r].transfer[axis].sent) return false;
        sent += results[r].transfer[axis].sent;
        received += results[r].transfer[axis].received;
    }
    return sent == received;
}

static void compare(const char *device, const Network *net, const char *name, int world, const Settings *s) {
    Training one = {"cpu", net, *s, alone}, many = {device, net, *s, results};
    const int tensor = s->mesh.tensor, pipeline = s->mesh.pipeline, data = world / tensor / pipeline;
    char what[240];
    snprintf(what, sizeof what, "%s on %s, %d x %d x %d ranks%s %s, zero %d, %s, accumulate %d, ahead %d, checkpoint %d, %d chunks, %s%s",
             name, device, pipeline, data, tensor, s->sequence_parallel ? " with sequences" : "",
             s->pipeline_schedule == PIPELINE_GPIPE ? "gpipe" : "1f1b", s->zero, precision_info(s->precision)->text,
             s->accumulate, s->gather_ahead, (int)s->checkpoint, s->loss_chunks, alloc_name(s->allocator),
             s->overlap_comm ? ", overlapped" : "");
    many.s.world = world;
    one.s.accumulate *= data;
    one.s.zero = 0;
    one.s.overlap_comm = false;
    one.s.mesh.tensor = one.s.mesh.pipeline = 1;
    one.s.sequence_parallel = false;
    const int well = run_ranks(1, 1, 1, train, &one), all = run_ranks(data, tensor, pipeline, train, &many);
    if (!ok(well == 1 && all == world, "%s: runs", what)) {
        printf("# %s\n", alone->problem);
        for (int r = 0; r < world; r++) printf("# rank %d: %s\n", r, results[r].problem);
        return;
    }
    const double apart = difference(&results[0], alone);
    if (!ok(apart <= tolerance(device, &many.s) && same_everywhere(world) && alone->loss[0] != alone->loss[STEPS - 1],
            "%s: trains as one rank does", what))
        printf("# %g apart; losses %.9g %.9g, alone %.9g %.9g\n", apart, (double)results[0].loss[0],
               (double)results[0].loss[STEPS - 1], (double)alone->loss[0], (double)alone->loss[STEPS - 1]);
    if ((s->zero >= 1 && data > 1) || tensor > 1 || pipeline > 1)
        ok(results[0].optimizer < alone->optimizer && (results[0].weights < alone->weights || (s->zero < 3 && tensor == 1 && pipeline == 1)),
           "%s: a rank holds less: weights %zu of %zu bytes, states %zu of %zu", what, results[0].weights, alone->weights,
           results[0].optimizer, alone->optimizer);
    if (!ok(as_predicted(world), "%s: predicted is measured on every rank", what))
        for (int r = 0; r < world; r++) printf("# rank %d: predicted %zu, measured %zu\n", r, results[r].predicted, results[r].peak);
    if (strcmp(device, "cpu")) return; /* NCCL sends by itself */
    if (!ok(sent_as_predicted(world, MESH_DATA) && sent_as_predicted(world, MESH_TENSOR) && sent_as_predicted(world, MESH_PIPELINE) &&
                (pipeline > 1 || (results[0].sent[MESH_DATA] > 0) == (data > 1)), "%s: as many bytes are sent as predicted", what))
        for (int r = 0; r < world; r++)
            for (int axis = 0; axis < MESH_AXES; axis++)
                printf("# rank %d, axis %d: predicted %d x %lld, sent %zu\n", r, axis, STEPS,
                       (long long)results[r].transfer[axis].sent, results[r].sent[axis]);
}

static const int worlds[] = {2, 3, 4};

#define NET_PACKED \
    "Sequential{Embedding(160, 32) PositionEmbedding(8, 32) Residual{Sequential{LayerNorm(32) CausalSelfAttention(32, 4)" \
    " Dropout(0.1)}} Checkpoint{Residual{Sequential{LayerNorm(32) Linear(32, 128) GELU Dropout(0.2) Linear(128, 32)}}}" \
    " LayerNorm(32) Linear(32, 160, bias=false) Flatten(0, 1)}"
/* Head and embedding share a weight, and adapters of a small rank lie beside a product. */
#define NET_SHARED \
    "Sequential{Embedding(160, 32) Residual{Sequential{RMSNorm(32) Add{Linear(32, 64)! Sequential{Linear(32, 4, bias=false)" \
    " Linear(4, 64, bias=false)}} GELU Add{Linear(64, 32)! Sequential{Linear(64, 4, bias=false) Linear(4, 32, bias=false)" \
    " Dropout(0.1)}}}} RMSNorm(32) Linear(32, 160, bias=false)&0 Flatten(0, 1)}"

static const struct { const char *name, *text, *loss; Shape input; } divided[] = {
    {"a perceptron", "Sequential{Linear(20, 64) ReLU Linear(64, 48) ReLU Linear(48, 10)}", CE, {2, {4, 20, 1, 1}}},
    {"GPT", NET_PACKED, CE, {2, {2, 8, 1, 1}}},
    {"a tied head", NET_SHARED, CE "(label_smoothing=0.1, lse_square_scale=0.01, ignore_index=48)", {2, {2, 8, 1, 1}}},
    {"a gated transformer", NET_GATED, CE, {3, {3, 6, 6, 1}}},
};

/* Products divided among ranks, with each stage; and the settings in turns. */
static void tensors(void) {
    static const Precision precisions[] = {PREC_FP32, PREC_AMP_BF16, PREC_MASTER_BF16, PREC_AMP_FP16};
    int turn = 0;
    for (size_t k = 0; k < ARRAY_LEN(divided); k++) {
        Err e = {0, ""};
        Network *net = net_new(divided[k].text, divided[k].loss, divided[k].input, &e);
        if (!ok(net != NULL, "%s %s", divided[k].name, e.text)) continue;
        for (int zero = 0; zero <= 3; zero += k ? 1 : 3)
            for (int data = 1; data <= 2; data++, turn++) {
                Settings s = settings_default();
                setting_set_text(&s, setting_find("optimizer"), "SGD", &e);
                s.optimizer.rule.momentum = 0.9f;
                s.optimizer.rule.lr = 0.05f;
                s.zero = zero;
                s.overlap_comm = turn / 2 % 2;
                s.mesh.tensor = 2;
                s.sequence_parallel = k && (zero + data) % 2 == 0;
                compare("cpu", net, divided[k].name, 2 * data, &s);
                s.sequence_parallel = k && !s.sequence_parallel;
                s.loss_chunks = 1 + turn % 3;
                s.precision = precisions[turn % 4];
                s.mesh.tensor = turn % 3 && k != 3 ? 2 : 4 >> (k == 3);
                s.accumulate = 1 + turn % 2;
                s.checkpoint = (Checkpoint)(turn % CHECKPOINT_BUDGET);
                s.recompute_light = turn / 2 % 2 == 0;
                s.recompute_least = 0;
                s.offload = turn % 4 == 3 ? OFFLOAD_ALL : OFFLOAD_NONE;
                s.offload_least = 0;
                s.optimizer.rule.clip_norm = turn % 2 ? 0.5f : 0.0f;
                compare("cpu", net, divided[k].name, s.mesh.tensor * data, &s);
            }
        network_free(net);
    }
}

/* Every stage with every network; and the settings in turns. */
static void stages(void) {
    static const Precision precisions[] = {PREC_FP32, PREC_AMP_BF16, PREC_MASTER_BF16, PREC_FP32, PREC_AMP_FP16};
    int turn = 0;
    for (size_t k = 0; k < ARRAY_LEN(nets); k++) {
        Err e = {0, ""};
        Network *net = net_new(nets[k].text, CE, nets[k].input, &e);
        if (!ok(net != NULL, "%s %s", nets[k].name, e.text)) continue;
        for (int zero = 0; zero <= 3; zero += k == 5 ? 3 : 1)
            for (int w = 0; w < 2; w++, turn++) {
                Settings s = settings_default();
                s.zero = zero;
                s.bucket_bytes = turn % 3 ? 2000 : 25 << 20;
                s.gather_ahead = turn % 3;
                s.overlap_comm = turn % 2;
                compare("cpu", net, nets[k].name, worlds[(w + turn) % 3], &s);
                s.overlap_comm = !s.overlap_comm;
                s.precision = precisions[turn % 5];
                /* Adam would make a rounding error of a gradient near 0 a whole step */
                setting_set_text(&s, setting_find("optimizer"), "SGD", &e);
                s.optimizer.rule.momentum = 0.9f;
                s.optimizer.rule.lr = 0.05f;
                s.accumulate = 1 + turn % 2;
                s.allocator = (AllocKind)(turn % ALLOC_COUNT);
                s.checkpoint = (Checkpoint)(turn % CHECKPOINT_BUDGET);
                s.recompute_light = turn / 2 % 2 == 0;
                s.recompute_least = 0;
                s.offload = turn % 4 == 3 ? OFFLOAD_ALL : OFFLOAD_NONE;
                s.offload_least = 0;
                s.optimizer.rule.clip_norm = turn % 2 ? 0.5f : 0.0f;
                s.workspace_limit = turn % 2 ? 1000 : 4 << 20;
                compare("cpu", net, nets[k].name, worlds[w + 1], &s);
            }
        network_free(net);
    }
}

/* Four emulated GPUs and NCCL's stand-in, unless MEMTIDE_CUDA names a plugin for real ones. */
static void choose_gpus(void) {
    const char *build = getenv("BUILD");
    char file[1024];
    if (getenv("MEMTIDE_CUDA")) return;
    snprintf(file, sizeof file, "%s/emulate/memtide_cuda.so", build ? build : "build");
    setenv("MEMTIDE_CUDA", file, 1);
    snprintf(file, sizeof file, "%s/emulate/libnccl.so.2", build ? build : "build");
    setenv("MEMTIDE_NCCL", file, 1);
    setenv("EMULATE_MEMORY", "268435456,268435456,268435456,268435456", 1);
}

/* In a process of its own: one that has used CUDA cannot fork ranks that use it, too. */
static int count_gpus(int rank, Comm *const comm[MESH_AXES], void *arg) {
    Device *device = NULL;
    DeviceInfo info;
    Err e;
    (void)rank, (void)comm;
    int code = device_open("cuda:0", &device, &e);
    if (!code) code = device->table->info(device, &info, &e);
    if (!code) *(int *)arg = info.count;
    device_close(device);
    return code;
}

/* Products, vocabulary and sequence divided among GPUs; logits at once, and in parts. */
static void divided_gpus(void) {
    static const int some[] = {1, 2}; /* of divided[] */
    for (size_t k = 0; k < ARRAY_LEN(some); k++) {
        Err e = {0, ""};
        Network *net = net_new(divided[some[k]].text, divided[some[k]].loss, divided[some[k]].input, &e);
        Settings s = settings_default();
        if (!ok(net != NULL, "%s %s", divided[some[k]].name, e.text)) continue;
        setting_set_text(&s, setting_find("optimizer"), "SGD", &e);
        s.optimizer.rule.momentum = 0.9f;
        s.optimizer.rule.lr = 0.05f;
        s.mesh.tensor = 2;
        s.sequence_parallel = true;
        s.loss_chunks = 1 + (int)k * 2;
        compare("cuda:0", net, divided[some[k]].name, 2, &s);
        network_free(net);
    }
}

static Settings pipeline_settings(int stages, int micro_batches, PipelineSchedule schedule) {
    Settings s = settings_default();
    Err e = {0, ""};
    setting_set_text(&s, setting_find("optimizer"), "SGD", &e);
    s.optimizer.rule.momentum = 0.9f;
    s.optimizer.rule.lr = 0.05f;
    s.mesh.pipeline = stages;
    s.accumulate = micro_batches;
    s.pipeline_schedule = schedule;
    return s;
}

/* Stages on GPUs, alone and with ranks of other samples. */
static void pipelines_on_gpus(const Network *net, const char *name, int gpus) {
    for (int schedule = 0; schedule < 2; schedule++) {
        Settings s = pipeline_settings(2 + schedule, 3, (PipelineSchedule)schedule);
        if (s.mesh.pipeline <= gpus) compare("cuda:0", net, name, s.mesh.pipeline, &s);
        s = pipeline_settings(2, 2, (PipelineSchedule)schedule);
        s.zero = 3 * schedule;
        s.overlap_comm = schedule;
        s.precision = PREC_AMP_FP16;
        s.optimizer.rule.clip_norm = 0.5f;
        if (gpus >= 4) compare("cuda:0", net, name, 4, &s);
    }
}

/* Ranks on GPUs, by NCCL, beside one rank on the CPU: shards that are of one size, and others. */
static void on_gpus(void) {
    static const int some[] = {0, 3}; /* of nets[] */
    int *gpus = shared_memory(sizeof *gpus);
    choose_gpus();
    if (!gpus || access(getenv("MEMTIDE_CUDA"), R_OK)) {
        skip("ranks on GPUs", "no CUDA plugin was built");
        return;
    }
    if (!ok(run_ranks(1, 1, 1, count_gpus, gpus) == 1 && *gpus >= 2, "two GPUs or more: %d", *gpus)) return;
    for (size_t k = 0; k < ARRAY_LEN(some); k++) {
        Err e = {0, ""};
        Network *net = net_new(nets[some[k]].text, CE, nets[some[k]].input, &e);
        if (!ok(net != NULL, "%s %s", nets[some[k]].name, e.text)) continue;
        for (int zero = 0; zero <= 3; zero++) {
            Settings s = settings_default();
            setting_set_text(&s, setting_find("optimizer"), "SGD", &e);
            s.optimizer.rule.momentum = 0.9f;
            s.optimizer.rule.lr = 0.05f;
            s.zero = zero;
            s.bucket_bytes = 2000;
            s.accumulate = 1 + zero % 2;
            s.overlap_comm = k != 0;
            compare("cuda:0", net, nets[some[k]].name, 2, &s);
            if (k != 0) continue;
            s.overlap_comm = true;
            s.precision = PREC_AMP_FP16;
            s.optimizer.rule.clip_norm = 0.5f;
            compare("cuda:0", net, nets[some[k]].name, *gpus < 3 ? 2 : 3, &s);
        }
        if (k == 0) pipelines_on_gpus(net, nets[some[k]].name, *gpus);
        network_free(net);
    }
    divided_gpus();
}

static const struct { const char *name, *text; Shape input; int most; } cut[] = {
    {"a perceptron", "Sequential{Linear(20, 64) ReLU Linear(64, 48) ReLU Linear(48, 32) Tanh Linear(32, 10)}", {2, {4, 20, 1, 1}}, 4},
    {"images", NET_IMAGES, {4, {3, 3, 12, 12}}, 3},
    {"GPT", NET_PACKED, {2, {2, 8, 1, 1}}, 4},
    {"a gated transformer", NET_GATED, {3, {3, 6, 6, 1}}, 4},
    {"an LSTM", NET_RECURRENT, {3, {3, 5, 6, 1}}, 2},
    {"a frozen layer", "Sequential{Linear(20, 64)! ReLU Linear(64, 48) ReLU Linear(48, 10)}", {2, {4, 20, 1, 1}}, 3},
};

static size_t most_of(int world) {
    size_t most = 0;
    for (int r = 0; r < world; r++) most = max_size(most, results[r].peak);
    return most;
}

/* Stages alone, with both schedules: the bits of one rank. 1F1B needs no more memory than GPipe. */
static void stages_alone(const Network *net, const char *name, int most) {
    for (int stages = 2; stages <= most; stages++)
        for (int micro_batches = 1; micro_batches <= 4; micro_batches *= 2) {
            size_t peak[2];
            for (int k = 0; k < 2; k++) {
                Settings s = pipeline_settings(stages, micro_batches, k ? PIPELINE_GPIPE : PIPELINE_1F1B);
                compare("cpu", net, name, stages, &s);
                peak[k] = most_of(stages);
            }
            ok(peak[0] <= peak[1] && (micro_batches < 4 || stages > 2 || peak[0] < peak[1]),
               "%s, %d stages, %d micro-batches: 1F1B needs %zu bytes, GPipe %zu", name, stages, micro_batches, peak[0], peak[1]);
        }
}

/* Stages with the other axes, ZeRO's stages, precisions and checkpoints in turns. */
static void pipelines(void) {
    static const Precision precisions[] = {PREC_FP32, PREC_AMP_BF16, PREC_MASTER_BF16, PREC_AMP_FP16};
    int turn = 0;
    for (size_t k = 0; k < ARRAY_LEN(cut); k++) {
        Err e = {0, ""};
        Network *net = net_new(cut[k].text, CE, cut[k].input, &e);
        if (!ok(net != NULL, "%s %s", cut[k].name, e.text)) continue;
        stages_alone(net, cut[k].name, cut[k].most);
        for (int zero = 0; zero <= 3; zero++, turn++) {
            const bool frozen = strchr(cut[k].text, '!');
            Settings s = pipeline_settings(2, 1 + turn % 3, (PipelineSchedule)(turn % 2));
            s.zero = zero;
            s.overlap_comm = (turn + zero) % 2;
            compare("cpu", net, cut[k].name, 4, &s);
            s.precision = precisions[turn % 4];
            s.checkpoint = (Checkpoint)(turn % CHECKPOINT_BUDGET);
            s.recompute_light = turn / 2 % 2 == 0;
            s.recompute_least = 0;
            s.optimizer.rule.clip_norm = turn % 2 && !frozen ? 0.5f : 0.0f;
            s.allocator = (AllocKind)(turn % ALLOC_COUNT);
            s.gather_ahead = turn % 3;
            s.bucket_bytes = turn % 2 ? 2000 : 25 << 20;
            compare("cpu", net, cut[k].name, 4, &s);
            if (k == 1 || k >= 4) continue; /* it has nothing that is divided by features */
            s.mesh.tensor = 2;
            s.sequence_parallel = k && turn % 3 == 0;
            compare("cpu", net, cut[k].name, turn % 2 ? 8 : 4, &s);
        }
        network_free(net);
    }
}

/* t_ranks NAME: that part alone */
int main(int argc, char **argv) {
    static const struct { const char *name; void (*run)(void); } parts[] = {
        {"stages", stages}, {"tensors", tensors}, {"pipelines", pipelines}, {"gpus", on_gpus}};
    results = shared_memory(RANKS_MOST * sizeof *results);
    alone = shared_memory(sizeof *alone);
    if (!ok(results && alone, "memory that processes share")) return tap_done();
    for (size_t i = 0; i < ARRAY_LEN(parts); i++)
        if (argc < 2 || !strcmp(argv[1], parts[i].name)) parts[i].run();
    return tap_done();
}
