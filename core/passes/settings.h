/* settings.h: how a network's step program is made: the settings of a cell of a sweep, and some that only tests and
 * scripts set. */
#ifndef MT_SETTINGS_H
#define MT_SETTINGS_H

#include "memory/alloc_caching.h"
#include "network/options.h"
#include "program/formula.h"

/*   name          text           low dtype  weights  activations  fp32 master  loss scaling   in apex's words */
#define PRECISIONS(X)                                                                                   \
    X(FP32,        "fp32",        F32,  F32,  AUTOCAST_OFF, false, false, "O0: no TF32 anywhere")       \
    X(TF32,        "tf32",        F32,  F32,  AUTOCAST_OFF, false, false, "TF32 products on a GPU")     \
    X(AMP_FP16,    "amp_fp16",    F16,  F32,  AUTOCAST_ON,  false, true,  "O1: autocast, fp32 weights") \
    X(AMP_BF16,    "amp_bf16",    BF16, F32,  AUTOCAST_ON,  false, false, "autocast, fp32 weights")     \
    X(MASTER_FP16, "master_fp16", F16,  F16,  AUTOCAST_OFF, true,  true,  "O2: fp32 master copy")       \
    X(MASTER_BF16, "master_bf16", BF16, BF16, AUTOCAST_OFF, true,  false, "O2 in bf16")                 \
    X(FP16,        "fp16",        F16,  F16,  AUTOCAST_OFF, false, false, "O3: all fp16, loss scale 1") \
    X(BF16,        "bf16",        BF16, BF16, AUTOCAST_OFF, false, false, "O3 in bf16")

typedef enum Precision {
#define X(name, text, low, weights, autocast, master, scaling, what) PREC_##name,
    PRECISIONS(X)
#undef X
    PREC_COUNT
} Precision;

typedef struct PrecisionInfo {
    const char *text;
    DType low, weights;   /* low: what autocast casts to, and of the activations where weights are 16-bit */
    bool autocast, master, loss_scaling;
} PrecisionInfo;
const PrecisionInfo *precision_info(Precision p);

/*   checkpoint: text, what is kept for the backward pass */
#define CHECKPOINTS(X)                                            \
    X(NONE, "none", "everything")                                 \
    X(MARKED, "marked", "all but the insides of nn.Checkpoint")   \
    X(ALL, "all", "only where the network is one tensor wide")    \
    X(SQRT, "sqrt", "sqrt(n) of those places (Chen et al. 2016)") \
    X(SELECTIVE, "selective", "all but what light ops make of what is kept") \
    X(BUDGET, "budget", "the fastest choice that fits a number of bytes")

typedef enum Checkpoint {
#define X(name, text, what) CHECKPOINT_##name,
    CHECKPOINTS(X)
#undef X
} Checkpoint;

/* Which activations wait for the backward pass in the host's memory. budget: as few as keep the step within a number of
 * bytes of the device. */
#define OFFLOADS(X)                                          \
    X(NONE, "none", "nothing")                               \
    X(ALL, "all", "all that the backward pass reads again")  \
    X(BUDGET, "budget", "as many as must")

typedef enum Offload {
#define X(name, text, what) OFFLOAD_##name,
    OFFLOADS(X)
#undef X
} Offload;

/* In which order a stage of a pipeline works on the micro-batches of a step.
 *   schedule: enum, text, order */
#define PIPELINE_SCHEDULES(X)                                                                   \
    X(1F1B,  "1f1b",  "one forward, one backward, as soon as the first gradients come back")    \
    X(GPIPE, "gpipe", "all forward, then all backward")

typedef enum PipelineSchedule {
#define X(name, text, what) PIPELINE_##name,
    PIPELINE_SCHEDULES(X)
#undef X
} PipelineSchedule;

/* In the order of settings.def's words, which says what they mean */
typedef enum Inplace { INPLACE_MARKED, INPLACE_OFF, INPLACE_ON } Inplace;

/* What every optimizer of optimizers.def has beside its own options */
#define OPTIM_CLIPS " * clip_norm:float=0"

typedef enum OptimKind {
#define OPTIMIZER(name, op, options) OPTIM_##name,
#define PAGED(name, of) OPTIM_##name,
#include "program/optimizers.def"
    OPTIM_COUNT
} OptimKind;
/* Whose rule and options it has: of PagedAdam Adam, of the others themselves. */
OptimKind optimizer_base(OptimKind kind);
/* Do its states wait in the host's memory? Those of parameters with fewer numbers stay on the device, as with
 * bitsandbytes (optim/optimizer.py: get_state_buffer). */
static inline bool optimizer_is_paged(OptimKind kind) { return optimizer_base(kind) != kind; }
enum { PAGE_LEAST = 100000 };

typedef struct Optimizer {
    OptimKind kind;
    OptimRule rule;
    Formula formula; /* of Rule */
} Optimizer;
/* The option line of an optimizer, and its name (name may be NULL); NULL past the end. */
const char *optimizer_spec(int kind, const char **name);
/* From finished options of that kind's spec. ERR_SCRIPT: out of range, as in PyTorch (lr >= 0, 0 <= beta < 1, ...). */
int optimizer_set(Optimizer *o, int kind, const Options *options, Err *e);
/* The op that updates a parameter of shape `like`; NULL: one that is too small for states of 8 bits. */
OpKind optimizer_op(const Optimizer *o, const Shape *like);
typedef struct OptimState { Shape shape; DType type; } OptimState;
/* The name of the state that is its output `slot`: the buffer's name ends with it. */
const char *optimizer_state_name(const Optimizer *o, int slot, const Shape *like);
/* Does that op keep it? If so, *state says how it looks. type: what the rule computes with, the type of the weight or of
 * its master. */
bool optimizer_keeps(const Optimizer *o, int slot, const Shape *like, DType type, OptimState *state);

/*   framework: text, whose step */
#define FRAMEWORKS(X)                                   \
    X(MEMTIDE, "memtide", "memtide's own")              \
    X(PYTORCH, "pytorch", "that of eager PyTorch, predicted and never run")

typedef enum Framework {
#define X(name, text, what) FRAMEWORK_##name,
    FRAMEWORKS(X)
#undef X
} Framework;

/* Whose kernels scaled_dot_product_attention runs: the names of torch.nn.attention.SDPBackend, in lower case.
 *   attention: enum, text, SDPBackend */
#define SDP_BACKENDS(X)                                  \
    X(ANY,       "default",          "PyTorch's choice") \
    X(FLASH,     "flash",            "FLASH_ATTENTION")  \
    X(EFFICIENT, "memory_efficient", "EFFICIENT_ATTENTION") \
    X(CUDNN,     "cudnn",            "CUDNN_ATTENTION")  \
    X(MATH,      "math",             "MATH")

typedef enum SdpBackend {
#define X(name, text, backend) SDP_##name,
    SDP_BACKENDS(X)
#undef X
    SDP_COUNT
} SdpBackend;
const char *sdp_backend_text(SdpBackend b);

/* What a training loop of PyTorch may choose; its defaults where a script says nothing. */
typedef enum Ternary { UNSAID, SAID_FALSE, SAID_TRUE } Ternary;
typedef enum MpType { MP_UNSAID, MP_FLOAT32, MP_BFLOAT16 } MpType;
enum { RESIDENTS = 8 };
typedef struct PyTorchOptions {
    Ternary foreach, fused;  /* of the optimizer: PyTorch's default is foreach, where there is that form */
    Ternary set_to_none;     /* of zero_grad: true */
    Ternary use_reentrant;   /* of torch.utils.checkpoint: false */
    bool drops_output, drops_loss; /* keep: without that variable; false, so that the default keeps both */
    Ternary step_function;   /* a step is a function of x and y, with whose end output and loss go: false */
    SdpBackend attention;    /* sdpa_kernel(): any */
    char version[8];         /* of PyTorch, "2.15"; "": the newest that is known (core/eager/versions.def) */
    Ternary channels_last;   /* model and x are .to(memory_format=torch.channels_last): false */
    Ternary cudnn_benchmark; /* torch.backends.cudnn.benchmark: false */
    Ternary gradient_as_bucket_view, broadcast_buffers; /* of DistributedDataParallel: false, true */
    MpType param_dtype, reduce_dtype; /* of fully_shard's MixedPrecisionPolicy: that of the parameters */
    int n_resident;
    int64_t resident[RESIDENTS]; /* bytes of each tensor that the script holds beside the model, before the first step */
    CachingSettings caching; /* alloc_conf: what PYTORCH_CUDA_ALLOC_CONF says */
} PyTorchOptions;
/* Reads "name=value name=value" by set(to, name, value, e) of each. ERR_SCRIPT, where `whose` begins the message: a pair
 * without "=", or one of 256 characters or more; or what `set` returns. */
typedef int SetPairFn(void *to, const char *name, const char *value, Err *e);
int setting_pairs(const char *whose, const char *text, SetPairFn *set, void *to, Err *e);
/* From "alloc_conf=expandable_segments:True fused=true". ERR_SCRIPT: an unknown name, or a value that it cannot have. */
int pytorch_options_set(PyTorchOptions *o, const char *text, Err *e);

/* torch.amp.GradScaler's options */
typedef struct GradScaler {
    Ternary enabled;  /* UNSAID: where the precision has a loss scale */
    float init_scale; /* above 0 */
    ScalerAttr attr;
} GradScaler;
/* From "init_scale=1024 growth_interval=100", "true" (PyTorch's defaults), "false", "" (nothing is said) or "1024" (a
 * fixed scale). ERR_SCRIPT: an unknown name, or a value out of range: growth_factor > 1, 0 < backoff_factor < 1,
 * growth_interval >= 1. */
int grad_scaler_set(GradScaler *s, const char *text, Err *e);

/* How the ranks of a training are arranged: rank = (pipeline coordinate times data, plus data coordinate) times tensor, plus
 * tensor coordinate. */
typedef struct MeshSizes { int data, tensor, pipeline; } MeshSizes; /* data 0: what is left of world */
/* From "data=4 tensor=2 pipeline=2". ERR_SCRIPT: an unknown name, or a size that is none. */
int mesh_set(MeshSizes *m, const char *text, Err *e);

typedef struct Settings {
    Framework framework;
    PyTorchOptions pytorch;
    Precision precision;
    int accumulate;          /* micro-batches per update, at least 1 */
    Checkpoint checkpoint;
    size_t budget;           /* bytes, for CHECKPOINT_BUDGET */
    bool recompute_light;    /* what light ops make of kept activations is not kept, where that lowers the peak */
    bool sliced_updates;     /* large weights are updated some rows at a time, where that lowers the peak */
    size_t recompute_least;  /* bytes: smaller activations are kept, since an op takes a while to start */
    Offload offload;
    size_t offload_budget;   /* bytes of the device, for OFFLOAD_BUDGET; else 0 */
    size_t offload_least;    /* bytes: smaller activations stay, since starting a copy takes longer than the copy */
    int loss_chunks;         /* parts of the logits that are there one at a time, at least 1 */
    int world, rank;         /* ranks that train together, at least 1; the one that the program is for, below world */
    MeshSizes mesh;
    bool sequence_parallel;  /* what lies between divided layers is divided along the sequence */
    PipelineSchedule pipeline_schedule;
    int zero;                /* ZeRO's stage, 0 to 3 */
    int gather_ahead;        /* layers before its use in which a weight is gathered */
    size_t bucket_bytes;     /* gradients that are sent together */
    bool overlap_comm;       /* collective ops go on while the device computes */
    bool feed_ahead;         /* a micro-batch is copied to the device while the one before it is computed */
    Inplace inplace;
    bool eval;               /* mode = "eval": no gradients, nothing saved */
    bool no_loss;            /* evaluation without a target: the output is kept instead */
    AllocKind allocator;
    size_t workspace_limit;  /* bytes that a library may ask for one op */
    bool graph;              /* record the step and replay it, where device and allocator allow it */
    Optimizer optimizer;
    int64_t page_least;      /* numbers of a parameter: a paged optimizer's states of fewer stay on the device */
    bool scheduled;          /* the learning rate is a buffer "lr", which can be written between steps */
    GradScaler scaler;
    char scope[32];          /* the names of the program's own counters begin with it, so that programs with optimizers
                              * of their own can share parameters; "": with nothing */
    bool keep_output, keep_gradients; /* they can be read after a step */
    bool parts; /* forward, backward and update can run one by one; then accumulate is 1 */
} Settings;

/* The defaults of settings.def, recompute_least and offload_least 4 KiB and page_least PAGE_LEAST. */
Settings settings_default(void);
/* Do the optimizer's states of a parameter of that shape wait in the host's memory? */
bool optimizer_pages(const Settings *s, const Shape *like);
/* Does the training multiply its loss by a scale? As in PyTorch, a scaler that is given works in any precision. */
bool settings_scale_loss(const Settings *s);

typedef enum SettingType {
    SETTING_text, SETTING_count, SETTING_size, SETTING_flag, SETTING_word, SETTING_word_or_bytes,
    SETTING_optimizer, SETTING_options, SETTING_scaler, SETTING_mesh, SETTING_TYPES
} SettingType;
enum { SETTING_OUTER, SETTING_CELL, SETTING_INNER };

/* A row of settings.def. */
typedef struct Setting {
    const char *name, *initial, *words, *tried, *unit, *text; /* initial: the default */
    SettingType type;
    int whose;            /* SETTING_OUTER, ... */
    size_t at, size;      /* of its field in Settings */
    size_t bytes_at;      /* of word_or_bytes */
    int64_t least, most;  /* of a count */
} Setting;
/* The i-th row, from 0; NULL past the last one. */
const Setting *setting_info(int i);
const char *setting_type_name(SettingType type);
/* The setting of that name that programs know (SETTING_CELL, SETTING_INNER); NULL: there is none. */
const Setting *setting_find(const char *name);
/* Set such a setting from a text ("true" and "false" for flags; an optimizer by its name, with its defaults; options
 * as "name=value name=value"), and from a number. ERR_SCRIPT says what was expected. */
int setting_set_text(Settings *s, const Setting *setting, const char *text, Err *e);
int setting_set_number(Settings *s, const Setting *setting, double value, Err *e);
/* Sets it to what it is where nothing is said. */
void setting_set_default(Settings *s, const Setting *setting);

#endif
