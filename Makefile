# make help lists the targets. BUILD, CC, CXX, CFLAGS, PREFIX, NVCC, CUDA_ARCHS, V=1 (show commands) may be set.

# A build takes every processor, unless -j says otherwise. Makes inside it share its jobs; those of scripts cannot, so scripts unset MAKELEVEL.
ifeq ($(MAKELEVEL),0)
MAKEFLAGS += -j$(shell nproc)
endif

# Several targets run one after the other, each by a make of its own: what `deps` installs is there for the next one.
ifneq ($(word 2,$(MAKECMDGOALS)),)
.NOTPARALLEL:
.PHONY: $(MAKECMDGOALS)
$(MAKECMDGOALS):
	@+$(MAKE) --no-print-directory $@
else

BUILD  ?= build
PREFIX ?= /usr/local
CC     ?= cc
CFLAGS ?= -O3 -g
Q = $(if $(V),,@)

WARN  = -Wall -Wextra -Wpedantic -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith -Wwrite-strings \
        -Wvla -Wundef -Wno-format-truncation
# -UNDEBUG: asserts stay on in every build, the released program too, since to stop is better than to compute a wrong
# result; so a loop over elements has none.
FLAGS = -std=c11 -D_GNU_SOURCE -UNDEBUG -fPIC -fopenmp -ffp-contract=off -fno-math-errno -fno-trapping-math \
        $(WARN) -MMD -MP -Icore $(EXTRA)
LUA_CFLAGS ?= -I/usr/include/lua5.4
LUA_LIB ?= -l:liblua5.4.a
LIBS   = -ldnnl -lz -lpthread -ldl -lm
DEPS_DEV = clang libclang-rt-14-dev gzip
DEPS   = libopenmpi-dev openmpi-bin gcc g++ make libc6-dev libdnnl-dev liblua5.4-dev lua5.4 zlib1g-dev perl

CORE    = $(wildcard core/*/*.c core/*/*/*.c)
ONCE    = $(addprefix kernels/cpu/,device.c stream.c waiting.c flights.c machine.c spread.c)
KERNELS = $(filter-out $(ONCE),$(wildcard kernels/cpu/*.c))
LUA_C   = $(filter-out lua/main.c,$(wildcard lua/*.c))
MODULES = $(wildcard lua/memtide/*.lua lua/memtide/*/*.lua lua/memtide/*/*.py experiments/start/*.lua)
# The CPU's kernels are compiled once per instruction set (kernels/cpu/isa.h), with less optimisation for processors from
# before 2013. Short loops, such as ReLU's, take half as long again where they lie across two lines of instructions.
ISAS    = $(if $(filter x86_64%,$(shell $(CC) -dumpmachine)),v4 v3) base
ALIGNED = -falign-loops=32
ISA_v4  = -march=x86-64-v4 $(ALIGNED)
ISA_v3  = -march=x86-64-v3 $(ALIGNED)
ISA_base = -O2 -ftree-vectorize
# The compiler's own, since it may compile for another machine
TARGET_LD      := $(shell $(CC) -print-prog-name=ld)
TARGET_OBJCOPY := $(shell $(CC) -print-prog-name=objcopy)
LIB_OBJ = $(patsubst %.c,$(BUILD)/%.o,$(CORE) $(ONCE)) $(ISAS:%=$(BUILD)/kernels/cpu/%.o)
LUA_OBJ = $(patsubst %.c,$(BUILD)/%.o,$(LUA_C)) $(BUILD)/modules.o
REF_OBJ = $(patsubst %.c,$(BUILD)/%.o,$(wildcard tests/reference/*.c))
C_TESTS = $(patsubst tests/%.c,$(BUILD)/tests/%,$(wildcard tests/unit/*.c tests/device/*.c tests/emulate/t_*.c)) \
    $(addprefix $(BUILD)/tests/emulate/,t_emulate t_shadow $(INSIDE_CUDA))
MPI_TESTS = $(if $(MPICC),$(addprefix $(BUILD)/tests/mpi/,t_comm memtide_mpi.so))
UNIT_TESTS = $(filter $(BUILD)/tests/unit/%,$(C_TESTS))
# One more than README's two processors: some tests wait for clocks and signals most of their time.
PROVE  ?= -j3
RUN_TESTS = BUILD=$(BUILD) MEMTIDE=$(BUILD)/memtide prove --exec tests/run
# The longest begin first, so that none of them runs alone at the end.
LONG    = tests/cli/usage.sh $(BUILD)/tests/device/t_ranks tests/lua/t_docs.lua $(addprefix $(BUILD)/tests/device/,t_kernels t_sequence t_device) \
    $(addprefix tests/cli/,ranks.sh workers.sh slurm.sh screen.sh ranks_tuned.sh package.sh cuda.sh) tests/lua/t_fit.lua tests/lua/t_deep.lua \
    tests/emulate/shadow.sh $(BUILD)/tests/device/t_onednn tests/cli/deaths.sh tests/lua/t_fit_methods.lua
ALL_TESTS = $(C_TESTS) $(wildcard tests/lua/t_*.lua tests/cli/*.sh tests/emulate/*.sh tests/mpi/*.sh)
TESTS   = $(filter $(ALL_TESTS),$(LONG)) $(filter-out $(LONG),$(ALL_TESTS))
# Tests for which threads matter run a second time with all threads: one test at a time, because two programs whose
# threads wait for each other on the same processors take twenty times as long. The emulated GPU's kernels have no threads:
# they are not run again.
THREADED = $(addprefix $(BUILD)/tests/device/,t_fuzz t_kernels t_sequence)

# A file that holds a value and changes only when the value does, as a prerequisite of what is built from the value.
stamp = $(shell mkdir -p $(BUILD); [ -e $(BUILD)/$1 ] && [ "$$(cat $(BUILD)/$1)" = '$2' ] || echo '$2' > $(BUILD)/$1)

# The CUDA plugin is built where a GPU is, by `make cuda`, and again where it has been built: nvcc takes minutes.
NVCC := $(firstword $(shell command -v nvcc) $(wildcard /usr/local/cuda/bin/nvcc))
CUDA := $(if $(NVCC),$(patsubst %/bin/nvcc,%,$(realpath $(NVCC))))
CUDA_WANTED := $(filter cuda cuda-test gpu-check gpu-pack,$(MAKECMDGOALS))$(wildcard /dev/nvidiactl /dev/dxg $(BUILD)/memtide_cuda.so)
CUDA_MISSING := $(if $(NVCC),$(if $(wildcard $(CUDA)/include/cudnn.h /usr/include/cudnn.h),,no cudnn.h),no nvcc)
CUDA_LACK := $(or $(CUDA_MISSING),$(if $(CUDA_WANTED),,no GPU is here (make cuda builds it all the same)))
CUDA_PLUGIN = $(if $(CUDA_LACK),,$(BUILD)/memtide_cuda.so)
# GPUs that the plugin has machine code for: the one that is here, else compute capability 9.0; "all": each kind from Turing to
# Blackwell. Code for 8.0 runs on 8.x, too, that for 10.0 on 10.3, that for 12.0 on 12.1; 11.0 (Jetson Thor) has its own. For later GPUs
# the driver compiles the PTX of the newest one.
CUDA_ARCHS ?= $(or $(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | tr -d . | grep -x '[0-9]*'),90)
override CUDA_ARCHS := $(shell printf '%s\n' $(patsubst all,75 80 86 89 90 100 110 120,$(CUDA_ARCHS)) | sort -nu)

# The planning library asks cuDNN about GPUs that are not here. It is plain C: wherever the headers of cuDNN and CUDA are, with
# or without nvcc; CUDNN and CUDNN_LIB say where else to look.
CUDNN ?= $(firstword $(foreach d,$(CUDA)/include /usr/local/cuda/include /usr/local/include /usr/include,\
    $(if $(wildcard $(d)/cudnn.h),$(d))))
CUDNN_LIB ?= $(wildcard $(CUDNN:%/include=%/lib64) $(CUDNN:%/include=%/lib))
CUDA_HEADERS ?= $(firstword $(foreach d,$(CUDNN) $(CUDA)/include /usr/local/cuda/include /usr/include,\
    $(if $(wildcard $(d)/cuda_runtime.h),$(d))))
PLAN_LACK := $(if $(CUDNN),$(if $(CUDA_HEADERS),,no cuda_runtime.h),no cudnn.h)
PLAN = $(if $(PLAN_LACK),,$(BUILD)/memtide_plan.so)

# Several ranks train together by MPI, wherever its compiler is.
MPICC ?= $(shell command -v mpicc)
MPI = $(if $(MPICC),$(BUILD)/memtide_mpi.so)

all: $(BUILD)/memtide $(BUILD)/memtide.so $(PLAN) $(MPI) $(CUDA_PLUGIN) ## build program, Lua module, planning library, plugins
	@$(if $(PLAN_LACK),echo "built without the planning library: $(PLAN_LACK)",:)
	@$(if $(MPI),:,echo "built without the MPI plugin: no mpicc")
	@$(if $(CUDA_LACK),echo "built without the CUDA plugin: $(CUDA_LACK)",:)

$(BUILD)/memtide: $(BUILD)/lua/main.o $(LUA_OBJ) $(LIB_OBJ)
	@echo "  LINK $@"
	$(Q)$(CC) $(CFLAGS) -fopenmp -rdynamic -o $@ $^ $(LUA_LIB) $(LIBS) $(EXTRA)

# the module is not linked to Lua, because the program that loads it has its own
$(BUILD)/memtide.so: $(LUA_OBJ) $(LIB_OBJ)
	@echo "  LINK $@"
	$(Q)$(CC) $(CFLAGS) -fopenmp -shared -o $@ $^ $(LIBS) $(EXTRA)

$(BUILD)/modules.c: lua/embed.lua $(MODULES)
	@mkdir -p $(@D)
	$(Q)lua5.4 lua/embed.lua $(MODULES) > $@

# the commit that was built, for the column "version"; empty outside a git checkout
COMMIT := $(shell git describe --always --dirty --exclude '*' 2>/dev/null)
$(call stamp,commit,$(COMMIT))
$(BUILD)/lua/bind.o: $(BUILD)/commit
$(BUILD)/lua/bind.o: override EXTRA += -DMT_COMMIT='"$(addprefix +,$(COMMIT))"'

$(BUILD)/modules.o: $(BUILD)/modules.c
	$(Q)$(CC) $(CFLAGS) $(FLAGS) -c -o $@ $<

$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	@echo "  CC   $<"
	$(Q)$(CC) $(CFLAGS) $(FLAGS) $(INCLUDE_$(firstword $(subst /, ,$<))) -c -o $@ $<
INCLUDE_lua = $(LUA_CFLAGS)

# The objects of an instruction set are linked into one, of which only its table of kernels is visible. -Wno-psabi: all
# functions that take vectors are inlined, so it does not matter how vectors would be passed.
define isa
$(BUILD)/kernels/cpu/$1/%.o: kernels/cpu/%.c
	@mkdir -p $$(@D)
	@echo "  CC   $$< ($1)"
	$(Q)$(CC) $(CFLAGS) $(FLAGS) $(ISA_$1) -Wno-psabi -DISA=$1 -c -o $$@ $$<

$(BUILD)/kernels/cpu/$1.o: $(KERNELS:kernels/cpu/%.c=$(BUILD)/kernels/cpu/$1/%.o)
	$(Q)$(TARGET_LD) -r -o $$@ $$^ && $(TARGET_OBJCOPY) --keep-global-symbol=cpu_kernels_$1 $$@
endef
$(foreach i,$(ISAS),$(eval $(call isa,$i)))
INCLUDE_tests = -Itests -Ikernels/cuda $(INCLUDE_kernels)
INCLUDE_kernels = $(addprefix -isystem ,$(addsuffix /include,$(CUDA)))

$(BUILD)/tests/%: $(BUILD)/tests/%.o $(REF_OBJ) $(LIB_OBJ)
	$(Q)$(CC) $(CFLAGS) -fopenmp -o $@ $^ $(LIBS) $(EXTRA)

# NVIDIA's libraries as pip lays them out: beside a wheel, whose libraries are in site-packages/memtide/bin; and in a Python environment
# of python3's version into which `make install` puts them, in lib/memtide.
SITES = ../.. $(shell python3 -c 'import sys; print("../python%d.%d/site-packages" % sys.version_info[:2])' 2>/dev/null)
RPATH = $(foreach s,$(SITES),$(foreach l,cudnn cu13 cublas cuda_nvrtc,-Wl,-rpath,'$$ORIGIN/$s/nvidia/$l/lib'))

# ---- the CUDA device: a shared object with the parts of the core that it needs; only its entry point is visible.
# -z defs: an op without a kernel is a link error.
PLUGIN_CORE = $(patsubst %,$(BUILD)/core/%.o,base/err base/mem base/shape program/linear_loss program/op program/op_cache)
PLUGIN_LINK = -shared -Wl,-z,defs -Wl,--version-script=$(filter %.map,$^)
CUDA_C  = $(filter-out kernels/cuda/plan.c kernels/cuda/plan_card.c,$(wildcard kernels/cuda/*.c))
CUDA_CU = $(wildcard kernels/cuda/*.cu)
DEVICES = $(wildcard kernels/cuda/devices/*)
CXXWARN = -Wall -Wextra -Wshadow -Wpointer-arith -Wwrite-strings
# --fmad=false: formulas round as on the CPU; a fused multiply-add must be written as one. -lineinfo, for profilers, takes
# half of the plugin's size or more, so it is left out unless the build is for a single kind of GPU.
NVCCFLAGS = -std=c++17 -O3 $(if $(word 2,$(CUDA_ARCHS)),,-lineinfo) -compress-mode=size --fmad=false -Werror all-warnings $(addprefix -Xcompiler ,-fPIC $(CXXWARN)) \
    $(if $(word 2,$(CUDA_ARCHS)),--threads 2) $(foreach a,$(CUDA_ARCHS),-gencode arch=compute_$a,code=sm_$a) \
    -gencode arch=compute_$(lastword $(CUDA_ARCHS)),code=compute_$(lastword $(CUDA_ARCHS))
$(call stamp,cuda_archs,$(CUDA_ARCHS))

$(BUILD)/%.cu.o: %.cu $(BUILD)/cuda_archs
	@mkdir -p $(@D)
	@echo "  NVCC [$$(ls $(CUDA_CU:%=$(BUILD)/%.o) 2>/dev/null | sed 's/.*/#/' | tr -d '\n')] of $(words $(CUDA_CU)): $<"
	$(Q)$(NVCC) $(NVCCFLAGS) -MMD -MP -MF $(@:.o=.d) -Icore -c -o $@ $<

# ---- the planning library: the part of the plugin that asks cuDNN, and needs neither a GPU nor nvcc
PLAN_C = $(addprefix kernels/cuda/,plan.c plan_card.c cudnn_device.c cudnn_graph.c engines.c tuned.c cache.c)
PLAN_OBJ = $(PLAN_C:kernels/cuda/%.c=$(BUILD)/plan/%.o)
$(BUILD)/plan/%.o: kernels/cuda/%.c
	@mkdir -p $(@D)
	@echo "  CC   $< (plan)"
	$(Q)$(CC) $(CFLAGS) $(FLAGS) $(addprefix -isystem ,$(CUDNN) $(CUDA_HEADERS)) -c -o $@ $<

# the second one, for tests/mpi, sends messages in small pieces
$(BUILD)/tests/mpi/memtide_mpi.so: private override EXTRA += -DPIECE=97
$(BUILD)/memtide_mpi.so $(BUILD)/tests/mpi/memtide_mpi.so: kernels/mpi/comm_mpi.c $(BUILD)/core/base/err.o $(BUILD)/core/base/mem.o \
    kernels/mpi/exports.map core/memory/comm.h
	@mkdir -p $(@D)
	@echo "  LINK $@"
	$(Q)$(MPICC) $(CFLAGS) $(FLAGS) -Wno-cast-function-type -shared -Wl,-z,defs -Wl,--version-script=kernels/mpi/exports.map -o $@ \
	    $(filter %.c %.o,$^)

$(BUILD)/tests/bench/collectives: tests/bench/collectives.c $(LIB_OBJ)
	@mkdir -p $(@D)
	@echo "  LINK $@"
	$(Q)$(MPICC) $(CFLAGS) $(FLAGS) -MF $@.d -o $@ $< $(LIB_OBJ) $(LIBS) $(EXTRA)

$(BUILD)/memtide_plan.so: $(PLAN_OBJ) $(PLUGIN_CORE) kernels/cuda/plan.map
	@echo "  LINK $@"
	$(Q)$(CC) $(CFLAGS) -shared -Wl,-z,defs -Wl,--version-script=kernels/cuda/plan.map -o $@ $(filter %.o,$^) \
	    $(CUDNN_LIB:%=-L%) -lcudnn -ldl -lm $(RPATH) $(EXTRA)

CUDA_OBJ = $(CUDA_CU:%=$(BUILD)/%.o)
PLUGIN_OBJ = $(CUDA_C:%.c=$(BUILD)/%.o) $(CUDA_OBJ) $(PLUGIN_CORE)
PLUGIN_LIBS = -L$(CUDA)/lib64 -L$(CUDA)/lib -lcudnn -lcublasLt -lcudart_static -lpthread -ldl -lrt -lm

$(BUILD)/memtide_cuda.so: $(PLUGIN_OBJ) kernels/cuda/exports.map $(DEVICES:kernels/cuda/%=$(BUILD)/%)
	@echo "  LINK $@"
	$(Q)$(CXX) $(CFLAGS) $(PLUGIN_LINK) -o $@ $(filter %.o,$^) $(PLUGIN_LIBS) $(RPATH) $(EXTRA)

cuda: all ## the CUDA plugin, where no GPU is, too; CUDA_ARCHS=all: machine code for every kind of GPU
	@$(if $(CUDA_LACK),echo "cuda: $(CUDA_LACK)"; exit 1,:)

# tests of the plugin's internals; they need NVIDIA's libraries, but no GPU
CUDA_TESTS = $(if $(CUDA_MISSING),,$(patsubst tests/%.c,$(BUILD)/tests/%,$(wildcard tests/cuda/*.c)))

$(BUILD)/tests/cuda/%: $(BUILD)/tests/cuda/%.o $(PLUGIN_OBJ) $(REF_OBJ)
	$(Q)$(CXX) $(CFLAGS) -o $@ $^ $(PLUGIN_LIBS) -Wl,-rpath,$(CUDA)/lib64 $(EXTRA)

# These describe cards.
$(addprefix $(BUILD)/tests/cuda/,t_card_plans t_attention_plans): $(BUILD)/plan/plan_card.o $(BUILD)/core/eager/card.o

# This one needs nccl.h, and neither the rest of the plugin nor a GPU.
$(BUILD)/tests/cuda/t_nccl: $(BUILD)/tests/cuda/t_nccl.o $(BUILD)/kernels/cuda/nccl.o $(BUILD)/core/base/err.o
	$(Q)$(CC) $(CFLAGS) -o $@ $^ -ldl -lm $(EXTRA)

# This one brings a profiler, which no other file of the plugin may find.
$(BUILD)/tests/cuda/t_nvtx: $(BUILD)/tests/cuda/t_nvtx.o $(BUILD)/kernels/cuda/nvtx.o
	$(Q)$(CC) $(CFLAGS) -o $@ $^ -lpthread -ldl $(EXTRA)

$(BUILD)/tests/unit/t_bench: $(BUILD)/kernels/cuda/bench.o

DEVICE_TESTS = $(filter-out $(UNIT_TESTS),$(C_TESTS))
shadow: all $(DEVICE_TESTS) $(SHADOW_TESTS) $(SHADOW_DEVICE) ## slow: own kernels at every shape, in SEEDS random orders, under the emulated GPU's shadow memory
	$(Q)$(MAKE) --no-print-directory -k -Otarget shadow-orders

# Orders run beside each other, so each has one thread for what the CPU computes.
shadow-orders: $(addprefix shadow-order,$(or $(SEEDS),- 1 2))
shadow-order%:
	$(Q)SAMPLE=0 SEEDS="$*" OMP_NUM_THREADS=1 $(RUN_TESTS) -v tests/emulate/shadow.sh

cuda-count: $(BUILD)/tests/emulate/t_count ## what own kernels move, against the least; with nvcc their registers, too (slow)
	$(Q)$< | sed -n 's/^# |/|/p'
	$(Q)$(if $(NVCC),echo && NVCC=$(NVCC) ARCH=$(lastword $(CUDA_ARCHS)) sh tests/cuda/registers.sh)

# What nvcc makes is seen wherever nvcc is, cuDNN or not: every .cu is compiled for one kind of GPU, and a small one for each.
NVCC_TESTS = $(if $(NVCC),tests/cuda/archs.sh)

cuda-test: $(CUDA_TESTS) ## tests of cuDNN's plans for a GPU that is not here, and of the files that keep them
	$(Q)$(if $(CUDA_MISSING),echo "cuda-test: skipped: $(CUDA_MISSING)",PLANS=all $(RUN_TESTS) $(PROVE) $^ $(NVCC_TESTS))

$(BUILD)/devices/%: kernels/cuda/devices/%
	$(Q)install -D -m 644 $< $@

# The same device with tests/emulate/ instead of CUDA, for machines without a GPU. Files that need NVIDIA's libraries are
# left out; tests/emulate/ replaces them.
LIBRARY_C = $(addprefix kernels/cuda/,libraries.c nvml.c cudnn_device.c cudnn_graph.c engines.c plan_cache.c)
EMULATED_C = $(filter-out $(LIBRARY_C),$(CUDA_C)) $(filter-out tests/emulate/t_% %/nccl.c,$(wildcard tests/emulate/*.c tests/emulate/shadow/*.c))
EMULATED_DEVICE = $(BUILD)/emulate/memtide_cuda.so
EMULATED_NCCL = $(BUILD)/emulate/libnccl.so.2
EMULATED_PLUGIN = $(EMULATED_DEVICE) $(EMULATED_NCCL)
EMULATE = -Itests/emulate -Ikernels/cuda -Icore -Itests $(if $(SHADOW),-DSHADOW)
# Kernels are compiled twice. In emulate/ they are as fast as they can be: fmaf is an instruction where the processor has it, for
# its call would take most of a product's time. In shadow/ they tell the emulator of each access to memory (tests/emulate/shadow/):
# the thread sanitizer's instrumentation without its library, which makes them several times as slow. Builds for other sanitizers
# have no shadow/: where it is asked for, they take the other ones.
SHADOW = $(if $(findstring -fsanitize,$(EXTRA)),,-fsanitize=thread,bounds --param tsan-instrument-func-entry-exit=0)
FUSED := $(if $(filter v3,$(ISAS)),$(shell grep -qw avx2 /proc/cpuinfo && echo '$(ISA_v3)'))
WATCHED = $(if $(SHADOW),shadow,emulate)
SHADOW_DEVICE = $(if $(SHADOW),$(BUILD)/shadow/memtide_cuda.so)

$(BUILD)/emulate/%.o: %.c
	@mkdir -p $(@D)
	@echo "  CC   $< (emulated)"
	$(Q)$(CC) $(CFLAGS) $(EMULATE) $(FLAGS) -c -o $@ $<

# -O2: most of their time is changes of threads, and to compile with more optimisation takes longer than it saves.
define emulated_kernels
$(BUILD)/$1/%.cu.o: %.cu
	@mkdir -p $$(@D)
	@echo "  CXX  $$< ($1)"
	$(Q)$$(CXX) $$(CFLAGS) -O2 $2 $$(EMULATE) -x c++ -std=c++17 -D_GNU_SOURCE -fPIC -ffp-contract=off -fno-math-errno \
	    $$(CXXWARN) -MMD -MP $$(EXTRA) -c -o $$@ $$<
endef
$(eval $(call emulated_kernels,emulate,$$(FUSED)))
$(eval $(call emulated_kernels,shadow,$$(SHADOW)))

# The shadow memory stands between the plugin's entry and the device.
$(BUILD)/emulate/kernels/cuda/plugin.o: private EMULATE += -Dcuda_open=emulated_open

# What a plugin or a test of its inside consists of, with the kernels of that folder
emulated_of = $(EMULATED_C:%.c=$(BUILD)/emulate/%.o) $(CUDA_CU:%=$(BUILD)/$1/%.o) $(REF_OBJ) $(PLUGIN_CORE)

$(EMULATED_DEVICE): $(call emulated_of,emulate) $(DEVICES:kernels/cuda/%=$(BUILD)/emulate/%)
$(SHADOW_DEVICE): $(call emulated_of,shadow)
$(EMULATED_DEVICE) $(SHADOW_DEVICE): tests/emulate/exports.map
	@mkdir -p $(@D)
	@echo "  LINK $@"
	$(Q)$(CXX) $(CFLAGS) $(PLUGIN_LINK) -o $@ $(filter %.o,$^) -ldl -lm $(EXTRA)

# A library of its own, as NCCL is one, which finds the plugin that has loaded it.
$(EMULATED_NCCL): $(BUILD)/emulate/tests/emulate/nccl.o $(EMULATED_DEVICE)
	@echo "  LINK $@"
	$(Q)$(CC) $(CFLAGS) -shared -Wl,-z,defs -Wl,-rpath,'$$ORIGIN' -o $@ $< -L$(@D) -l:memtide_cuda.so -lm $(EXTRA)

$(BUILD)/emulate/devices/%: kernels/cuda/devices/%
	$(Q)install -D -m 644 $< $@

# Tests that call functions inside the plugin; in tests/shadow/ those that the shadow memory watches, too
INSIDE = $(addprefix $(BUILD)/tests/emulate/,t_bias t_gemm t_tunable)
INSIDE_CUDA = t_linear t_conv_ways t_attention_ways
SHADOW_TESTS = $(if $(SHADOW),$(INSIDE_CUDA:%=$(BUILD)/tests/shadow/%))
$(INSIDE): $(BUILD)/tests/emulate/%: $(BUILD)/emulate/tests/emulate/%.o $(call emulated_of,emulate)
$(INSIDE_CUDA:%=$(BUILD)/tests/emulate/%): $(BUILD)/tests/emulate/%: $(BUILD)/emulate/tests/cuda/%.o $(call emulated_of,emulate)
$(SHADOW_TESTS): $(BUILD)/tests/shadow/%: $(BUILD)/emulate/tests/cuda/%.o $(call emulated_of,shadow)
$(BUILD)/tests/emulate/t_count: $(BUILD)/emulate/tests/emulate/t_count.o $(call emulated_of,$(WATCHED))
$(INSIDE) $(INSIDE_CUDA:%=$(BUILD)/tests/emulate/%) $(SHADOW_TESTS) $(BUILD)/tests/emulate/t_count:
	@mkdir -p $(@D)
	$(Q)$(CXX) $(CFLAGS) -o $@ $^ -ldl -lm $(EXTRA)

emulated: all $(EMULATED_PLUGIN) ## the CUDA device on an emulated GPU: MEMTIDE_CUDA=build/emulate/memtide_cuda.so

# for LD_PRELOAD: makes system calls fail and processes die where a test asks for it
FAULTS = $(BUILD)/tests/faults.so
$(FAULTS): tests/faults.c
	@mkdir -p $(@D)
	@echo "  CC   $<"
	$(Q)$(CC) -O1 -g $(FLAGS) -shared -o $@ $< -ldl

test: all $(if $(NVCC),$(CUDA_OBJ)) $(C_TESTS) $(CUDA_TESTS) $(MPI_TESTS) $(EMULATED_PLUGIN) $(SHADOW_TESTS) $(SHADOW_DEVICE) $(FAULTS) ## run every test (TAP, by prove)
	$(Q)$(if $(CUDA_MISSING),echo "tests/cuda: skipped: $(CUDA_MISSING)")
	$(Q)OMP_NUM_THREADS=1 $(RUN_TESTS) $(PROVE) $(TESTS) $(CUDA_TESTS) $(NVCC_TESTS)
	$(Q)$(MAKE) --no-print-directory -Otarget test-again

# some of them again, beside each other: with threads, and with fewer instructions
test-again: test-threads test-avx512 test-avx2
test-threads: $(THREADED)
	$(Q)MEMTIDE_CUDA=none $(RUN_TESTS) $(THREADED)
test-avx512: $(addprefix $(BUILD)/tests/device/,t_onednn t_pages t_threads)
	$(Q)PROVE=$(PROVE) sh tests/isa.sh "$^" AVX512_CORE
# Where AVX2 is all that there is, these tests have run with it.
test-avx2: $(addprefix $(BUILD)/tests/device/,t_kernels t_threads)
	$(Q)$(if $(shell grep -w avx512bw /proc/cpuinfo),PROVE=$(PROVE) sh tests/isa.sh "$^" AVX2,echo "AVX2: SKIPPED: this machine has nothing wider")

# tests that run the CPU's kernels
ISA_TESTS = $(addprefix $(BUILD)/tests/device/,t_kernels t_onednn t_pages t_sequence t_grad t_truth t_fuzz t_updates t_pool \
    t_pointwise t_threads)
test-isa: $(ISA_TESTS) ## the CPU's kernels under every instruction set that the machine has (a short form is in test)
	$(Q)PAGES=20000 PROVE=$(PROVE) sh tests/isa.sh "$(ISA_TESTS)" SSE41 AVX2 \
	    AVX512_CORE AVX512_CORE_VNNI AVX512_CORE_BF16 AVX512_CORE_AMX

# The kernels for AVX-512, of AVX2's instructions (tests/wide.h): a set as others are, and a device that takes it in place of v4
ISA_wide = $(ISA_v3) -include tests/wide.h
$(eval $(call isa,wide))
$(BUILD)/wide/%.o: %.c
	@mkdir -p $(@D)
	@echo "  CC   $< (wide)"
	$(Q)$(CC) $(CFLAGS) $(FLAGS) -include tests/wide.h $(INCLUDE_$(firstword $(subst /, ,$<))) -c -o $@ $<
WIDE_TESTS = $(addprefix $(BUILD)/wide/tests/device/,$(notdir $(ISA_TESTS)) t_rounded)
WIDE_OBJ = $(filter-out $(addprefix $(BUILD)/kernels/cpu/,v4.o device.o),$(LIB_OBJ)) $(BUILD)/kernels/cpu/wide.o $(BUILD)/wide/kernels/cpu/device.o
$(WIDE_TESTS): %: %.o $(REF_OBJ) $(WIDE_OBJ)
	$(Q)$(CC) $(CFLAGS) -fopenmp -o $@ $^ $(LIBS) $(EXTRA)
wide-check: $(WIDE_TESTS) ## the CPU's kernels for AVX-512 on a processor with AVX2, each register made of two (minutes)
	$(Q)PROVE=$(PROVE) sh tests/isa.sh "$^" AVX2

threads-check: $(BUILD)/tests/device/t_threads ## slow: every network in every precision and OPS (400) random ops have the same bits with 1 to 16 threads
	$(Q)OPS=$(or $(OPS),400) NETS=all $(RUN_TESTS) $^

run: all ## the article's techniques on this machine in a minute: predicted, then one quick visit of each
	@echo; echo "Predicted, and nothing computed: the memory of a step with each technique"
	$(Q)$(BUILD)/memtide predict experiments/article.lua --quiet
	@echo; echo "Measured: a few steps with each technique"
	$(Q)$(BUILD)/memtide run experiments/article.lua --quick --steps 3 --no-claims --csv $(BUILD)/quick.csv
	$(Q)$(BUILD)/memtide report $(BUILD)/quick.csv experiments/article.lua -o $(BUILD)/report.html --quiet
	@echo; echo "Pictures: $(BUILD)/report.html"
	@echo "Next:     $(BUILD)/memtide new mine      a script of your own to start from"
	@echo "          make article              the careful comparison, in interleaved rounds, with verdicts"

# a refuted claim is a result
REFUTED = case $$? in 5|6) ;; *) exit 1; esac
article: all ## the article's comparison on this machine, in interleaved rounds with verdicts: experiments/article.lua
	$(BUILD)/memtide run experiments/article.lua || $(REFUTED)

figures: all ## every figure that the docs quote, anew (hours); ONLY=article: those of one page, file or command
	$(Q)PYTHON=$(PYTHON) MEMTIDE=$(BUILD)/memtide $(BUILD)/memtide docs/figures.lua "$(ONLY)"

deps: ## install the Debian packages that are needed (or name them, if that is not allowed)
deps-dev: ## the same for packages that only checks need: clang with its sanitizers
deps-dev: DEPS = $(DEPS_DEV)
deps deps-dev:
	@missing=$$(for p in $(DEPS); do \
	    dpkg -s $$p 2>/dev/null | grep -q '^Status: install ok' || echo $$p; done | tr '\n' ' '); \
	if [ -z "$$missing" ]; then echo "all packages are there"; \
	elif [ "$$(id -u)" = 0 ]; then \
	    apt-get update -q && apt-get install -qy --no-install-recommends $$missing; \
	elif sudo -n true 2>/dev/null; then \
	    sudo apt-get update -q && sudo apt-get install -qy --no-install-recommends $$missing; \
	else echo "as root: apt-get install $$missing"; exit 1; fi

# kernels and the emulated CUDA that runs them
$(BUILD)/tests/emulate/t_emulate: $(BUILD)/emulate/tests/emulate/t_emulate.cu.o
$(BUILD)/tests/emulate/t_shadow: $(BUILD)/$(WATCHED)/tests/emulate/t_shadow.cu.o
$(addprefix $(BUILD)/tests/emulate/,t_emulate t_shadow): \
    $(patsubst %,$(BUILD)/emulate/tests/emulate/%.o,grid runtime stream shadow/shadow shadow/module shadow/count)
	@mkdir -p $(@D)
	$(Q)$(CXX) $(CFLAGS) -o $@ $(filter %.o,$^) $(EXTRA)

SANITIZE = -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
SANITIZED = BUILD=build/asan CFLAGS="-O1 -g" NVCC= EXTRA="$(SANITIZE)"
asan: ## the tests under AddressSanitizer and UndefinedBehaviorSanitizer
	ASAN_OPTIONS=allocator_may_return_null=1 $(MAKE) test $(SANITIZED)

asan-unit: ## the unit tests alone under both sanitizers
	ASAN_OPTIONS=allocator_may_return_null=1 $(MAKE) unit $(SANITIZED)

unit: $(UNIT_TESTS) ## the unit tests
	$(Q)OMP_NUM_THREADS=1 $(RUN_TESTS) $(PROVE) $(UNIT_TESTS)

# libFuzzer's targets: the core and the bindings are compiled again, by clang. The kernels read no files and do not
# compile with clang, so gcc's objects are used. clang's OpenMP has another library than gcc's, and the readers need no
# threads: the core goes without. For longer runs: make fuzz-readers FUZZ_SECONDS=3600
FUZZ_SECONDS ?= 60
FUZZ_BUILD = build/fuzz
fuzz-readers: $(BUILD)/memtide ## damaged input for every reader of files and messages, FUZZ_SECONDS (60) each
	$(Q)$(MAKE) BUILD=$(FUZZ_BUILD) GCC_BUILD=$(BUILD) CC=clang CFLAGS="-O1 -g -Wno-unknown-warning-option" NVCC= \
	    EXTRA="-fno-openmp -fsanitize=fuzzer-no-link $(SANITIZE)" $(FUZZ_BUILD)/readers
	$(Q)rm -rf $(FUZZ_BUILD)/seeds
	$(Q)$(BUILD)/memtide tests/fuzz/seeds.lua $(FUZZ_BUILD)/seeds
	$(Q)sh tests/fuzz/run.sh $(FUZZ_BUILD)/readers $(FUZZ_SECONDS) $(FUZZ_BUILD)

FUZZ_OBJ = $(patsubst %.c,$(BUILD)/%.o,$(wildcard tests/fuzz/*.c))
$(FUZZ_OBJ): override EXTRA += -Itests/emulate $(LUA_CFLAGS)
$(BUILD)/readers: $(FUZZ_OBJ) $(LUA_OBJ) $(CORE:%.c=$(BUILD)/%.o) $(ONCE:%.c=$(GCC_BUILD)/%.o) \
    $(ISAS:%=$(GCC_BUILD)/kernels/cpu/%.o)
	@echo "  LINK $@"
	$(Q)$(CC) $(CFLAGS) -rdynamic -o $@ $^ $(LUA_LIB) $(LIBS) -lgomp $(EXTRA) -fsanitize=fuzzer

fuzz: $(BUILD)/tests/device/t_fuzz $(BUILD)/tests/unit/t_safetensors ## random networks, settings and damaged files for a minute
	$(Q)FUZZ=20000 SEED=$$(date +%s) $(BUILD)/tests/device/t_fuzz
	$(Q)FUZZ=50000 SEED=$$(date +%s) $(BUILD)/tests/unit/t_safetensors

gpu-check: all $(C_TESTS) $(CUDA_TESTS) ## all checks that need a GPU, also against PyTorch (docs/gpu.md)
	$(Q)BUILD=$(BUILD) sh tests/gpu.sh

gpu-pack: all $(C_TESTS) $(CUDA_TESTS) ## BUILD/carry: everything for gpu-check on a machine without compilers
	$(Q)BUILD=$(BUILD) sh tests/gpu.sh --pack $(BUILD)/carry

soak: all ## the whole chaos test: 200 cells that fail in every way, the sweep killed 20 times
	$(Q)CELLS=20 KILLS=20 $(RUN_TESTS) -v tests/cli/chaos.sh

soak-long: all $(FAULTS) ## a sweep of CELLS (5000) with kills, stops and a full disk for MINUTES (60)
	$(Q)CELLS=$(or $(CELLS),5000) MINUTES=$(or $(MINUTES),60) $(RUN_TESTS) -v tests/cli/soak.sh

overhead: all ## what a sweep costs beside its cells' work: time, 10,000 predictions, memory; busy neighbours; snapshots
	$(Q)OMP_NUM_THREADS=1 $(RUN_TESTS) -v tests/bench/overhead.lua
	$(Q)$(RUN_TESTS) -v tests/bench/waiting.sh
	$(Q)$(RUN_TESTS) -v tests/bench/snapshot.lua

minimal-check: ## README's two commands in a minimal Debian 12, and how long they take (as root, with debootstrap; TESTS=1: the tests, too)
	$(Q)sh tests/minimal.sh

numa-check: $(BUILD)/memtide $(BUILD)/tests/device/t_machine ## memory over the nodes of a machine with two, emulated by qemu (minutes)
	$(Q)BUILD=$(BUILD) sh tests/numa.sh

arm64-check: ## the program and C tests for arm64, compiled here and run under qemu (minutes)
	$(Q)BUILD=$(BUILD) sh tests/arm64.sh

avx512-check: ## tests of the CPU's kernels on a processor with AVX-512 that Bochs emulates (half an hour)
	$(Q)BUILD=$(BUILD) sh tests/avx512.sh

slurm-check: all ## memtide slurm with a real Slurm (apt-get install slurm-wlm, as root)
	$(Q)SLURM=need $(RUN_TESTS) $(PROVE) tests/cli/slurm.sh

PYTHON ?= /usr/bin/python3
bench: all $(BUILD)/tests/bench/floor ## this machine's floor, and steps of known networks against PyTorch (in PYTHON)
	$(Q)$(BUILD)/tests/bench/floor
	$(Q)$(PYTHON) experiments/peers/pytorch_cpu.py --memtide $(BUILD)/memtide --python $(PYTHON) \
	    $(BENCH)

bench-bf16: all ## steps in bf16 beside fp32 on processors without instructions for it (ONEDNN_MAX_CPU_ISA)
	$(Q)$(PYTHON) tests/bench/precisions.py --memtide $(BUILD)/memtide $(BENCH)

# Products of one instruction set, v4 or v3; BLAS: a library with cblas_sgemm, to be compared with
ISA ?= v4
ONEDNN_v4 = AVX512_CORE
ONEDNN_v3 = AVX2
XSMM_v4 = skx
XSMM_v3 = hsw
$(BUILD)/tests/bench/products-%: tests/bench/products.c kernels/cpu/gemm.c kernels/cpu/gemm_tiles.c kernels/cpu/gemm.h \
    kernels/cpu/gemm_tiles.h kernels/cpu/registers.h
	@mkdir -p $(@D)
	@echo "  LINK $@"
	$(Q)$(CC) $(CFLAGS) $(FLAGS) $(ISA_$*) -Wno-psabi -Ikernels/cpu -MF /dev/null -o $@ $(filter %.c,$^) $(LIBS) $(EXTRA)

# libxsmm comes as an archive (Debian's libxsmm-dev): XSMM=/usr/lib/libxsmm.a
$(BUILD)/tests/bench/xsmm.so: $(XSMM)
	@mkdir -p $(@D)
	$(Q)$(CC) -shared -o $@ -Wl,--whole-archive $(XSMM) -Wl,--no-whole-archive $(wildcard $(XSMM:.a=noblas.a)) -lpthread -ldl -lm

bench-products: $(BUILD)/tests/bench/products-$(ISA) $(if $(XSMM),$(BUILD)/tests/bench/xsmm.so) ## matrix products beside oneDNN's, and those of BLAS (a library) and XSMM (libxsmm.a), by ISA (v4, v3); SHAPES="M,N,K ..."
	$(Q)ONEDNN_MAX_CPU_ISA=$(ONEDNN_$(ISA)) LIBXSMM_TARGET=$(XSMM_$(ISA)) $< $(BLAS) $(filter %.so,$^) $(SHAPES)

bench-attention: $(BUILD)/tests/bench/attention ## attention on the CPU beside the roof, and PyTorch's (in PYTHON); CASE="TYPE TOKENS GROUP DROPOUT"
	$(Q)$(PYTHON) tests/bench/attention.py $< $(CASE)

ROOT_MPI = $(if $(filter 0,$(shell id -u)),--allow-run-as-root)
bench-ranks: all $(BUILD)/tests/bench/collectives ## how long collective ops take beside MPI's own, on RANKS (2) ranks
	$(Q)OMP_NUM_THREADS=1 mpirun $(ROOT_MPI) --oversubscribe --bind-to none -n $(or $(RANKS),2) \
	    -x MEMTIDE_MPI=$(abspath $(MPI)) $(BUILD)/tests/bench/collectives

peer-fuzz: $(BUILD)/memtide ## slow: COUNT random networks in fp32 against PyTorch in float64 (2.1 or later, in PYTHON)
	$(Q)if $(PYTHON) -c 'import torch, numpy' 2>/dev/null; then $(PYTHON) -W ignore tests/peers/fuzz.py \
	    --memtide $(BUILD)/memtide --count $(or $(COUNT),300) --seed $(or $(SEED),1); \
	else echo "peer-fuzz: SKIPPED: $(PYTHON) has no torch"; fi

$(BUILD)/fakegpu.so: tests/peers/fakegpu.cpp
	$(Q)mkdir -p $(BUILD)
	@echo "  CXX  $@"
	$(Q)torch=$$($(PYTHON) -c 'import os, torch; print(os.path.dirname(torch.__file__))') && $(CXX) -std=c++20 -O1 -Wall \
	    -shared -fPIC -isystem $$torch/include -isystem $$torch/include/torch/csrc/api/include -o $@ $< \
	    -L$$torch/lib -lc10 -ltorch_cpu -Wl,-rpath,$$torch/lib

peer-eager: $(BUILD)/memtide ## slow: framework = "pytorch" beside what eager PyTorch allocates (PYTHON has 2.x and numpy)
	$(Q)if $(PYTHON) -c 'import torch, numpy' 2>/dev/null; then $(MAKE) --no-print-directory $(BUILD)/fakegpu.so && \
	    FAKEGPU=$(BUILD)/fakegpu.so $(PYTHON) -W ignore tests/peers/eager.py --memtide $(BUILD)/memtide $(EAGER); \
	else echo "peer-eager: SKIPPED: $(PYTHON) has no torch"; fi

fit-check: $(BUILD)/memtide ## slow: memtide fit's answers for the article's network run in FIT bytes (8GiB), none larger
	$(Q)FIT=$(or $(FIT),8GiB) $(RUN_TESTS) -v tests/lua/t_fit_runs.lua

train-check: $(BUILD)/memtide ## slow: networks learn their data completely
	$(Q)TRAIN=full $(RUN_TESTS) $(PROVE) tests/lua/t_train.lua

# SSE41: oneDNN's kernels for wider registers read a few bytes past the end of its own buffers
VALGRIND = valgrind -q --leak-check=full --show-leak-kinds=definite --errors-for-leak-kinds=definite --error-exitcode=9
valgrind: $(UNIT_TESTS) ## the unit tests under valgrind
	$(Q)DNNL_MAX_CPU_ISA=SSE41 OMP_NUM_THREADS=1 prove --exec "$(VALGRIND)" $(PROVE) $(UNIT_TESTS)

# Left out: tests of kernels and devices outside of core/, and tests that take minutes with counters. Headers are counted
# where core/ includes them.
COVER_UNIT = $(filter-out %/t_checkpoint_budget %/t_golden,$(UNIT_TESTS))
COVER_LUA  = $(filter-out $(patsubst %,tests/lua/t_%.lua,dependencies experiments fit_runs frontier growth models \
    plans),$(wildcard tests/lua/t_*.lua)) $(patsubst %,tests/cli/%.sh,older plan predict run spread)
coverage: ## the lines of core/ that unit tests and Lua tests reach, at least 95 % (gcov)
	$(Q)$(MAKE) coverage-run BUILD=build/coverage NVCC= INCLUDE_core="-O1 --coverage" EXTRA=-lgcov

coverage-run: all $(COVER_UNIT) $(BUILD)/tests/unit/t_golden
	$(Q)find $(BUILD)/core -name '*.gcda' -delete
	$(Q)OMP_NUM_THREADS=1 $(RUN_TESTS) $(PROVE) $(COVER_UNIT)
	$(Q)echo "by unit tests:" && lua5.4 tests/coverage.lua $(BUILD) 0
	$(Q)OMP_NUM_THREADS=1 $(RUN_TESTS) $(PROVE) \
	    $(BUILD)/tests/unit/t_golden $(COVER_LUA); failed=$$?; \
	    echo "by unit and Lua tests:"; lua5.4 tests/coverage.lua $(BUILD) 95 && exit $$failed

# What cppcheck found in a file is kept until the file changes: the first time takes minutes.
CPPCHECKED = build/lint/cppcheck
lint: ## warnings as errors; cppcheck and luacheck where they are installed
	$(Q)$(MAKE) $(if $(NVCC),cuda) emulated BUILD=build/lint CFLAGS="-O1 -Werror" CUDA_ARCHS=90
	$(Q)mkdir -p $(CPPCHECKED)
	$(Q)if command -v cppcheck >/dev/null; then cppcheck -q -j$$(nproc) --cppcheck-build-dir=$(CPPCHECKED) --std=c11 --error-exitcode=1 \
	    --enable=warning,portability --inline-suppr -Icore core kernels; else echo "no cppcheck: skipped"; fi
	$(Q)if command -v luacheck >/dev/null; then luacheck -q lua experiments tests packaging docs; else echo "no luacheck: skipped"; fi

# ---- what is installed: a line for each file, its mode, where it is from and where it goes below PREFIX. Uninstalling
# goes by the same list.
VERSION := $(shell sed -n 's/.*MT_VERSION "\(.*\)"/\1/p' core/base/base.h)
COMPLETIONS = $(addprefix $(BUILD)/share/,bash zsh fish)
PACKAGED = all $(BUILD)/libmemtide.a $(BUILD)/share/stubs/memtide.lua $(BUILD)/share/memtide.1 $(BUILD)/share/memtide.pc $(COMPLETIONS)
define INSTALLED
755 $(BUILD)/memtide bin/memtide
755 $(BUILD)/memtide.so lib/lua/5.4/memtide.so
$(if $(PLAN),755 $(PLAN) lib/memtide/memtide_plan.so)
$(if $(MPI),755 $(MPI) lib/memtide/memtide_mpi.so)
$(if $(CUDA_PLUGIN),755 $(CUDA_PLUGIN) lib/memtide/memtide_cuda.so)
$(if $(CUDA_PLUGIN),$(foreach f,$(DEVICES),644 $(f) lib/memtide/devices/$(notdir $(f))$(newline)))
644 $(BUILD)/libmemtide.a lib/libmemtide.a
644 $(BUILD)/share/memtide.pc lib/pkgconfig/memtide.pc
$(foreach f,$(wildcard core/*/*.h core/*/*.def core/*/*/*.h),644 $(f) include/memtide/$(f:core/%=%)$(newline))
$(foreach f,$(wildcard experiments/*.lua),644 $(f) share/memtide/$(f)$(newline))
$(foreach f,README.md LICENSE CHANGELOG.md $(wildcard docs/*.md docs/images/*),644 $(f) share/doc/memtide/$(f)$(newline))
644 packaging/example.c share/doc/memtide/example.c
644 $(BUILD)/share/stubs/memtide.lua share/memtide/stubs/memtide.lua
644 $(BUILD)/share/memtide.1 share/man/man1/memtide.1
644 $(BUILD)/share/bash share/bash-completion/completions/memtide
644 $(BUILD)/share/zsh share/zsh/site-functions/_memtide
644 $(BUILD)/share/fish share/fish/vendor_completions.d/memtide.fish
endef
define newline


endef
export INSTALLED

$(BUILD)/libmemtide.a: $(LIB_OBJ)
	@echo "  AR   $@"
	$(Q)rm -f $@ && ar rcs $@ $^

$(BUILD)/share/memtide.1: packaging/man.lua $(BUILD)/memtide
	@mkdir -p $(@D)
	$(Q)$(BUILD)/memtide $< > $@

$(BUILD)/share/stubs/memtide.lua: $(BUILD)/memtide
	@mkdir -p $(@D)
	$(Q)cd $(@D) && $(abspath $(BUILD))/memtide stubs -o . --quiet

$(COMPLETIONS): $(BUILD)/memtide
	@mkdir -p $(@D)
	$(Q)$(BUILD)/memtide completion $(@F) > $@

$(call stamp,prefix,$(PREFIX))
$(BUILD)/share/memtide.pc: packaging/memtide.pc.in core/base/base.h $(BUILD)/prefix
	@mkdir -p $(@D)
	$(Q)sed 's|@PREFIX@|$(PREFIX)|; s|@VERSION@|$(VERSION)|' $< > $@

install: $(PACKAGED) ## into PREFIX (/usr/local; DESTDIR is honoured): program, module, C library, docs, man page, completions
	$(Q)printf '%s\n' "$$INSTALLED" | while read -r mode from to; do \
	    [ -z "$$to" ] || install -D -m $$mode "$$from" "$(DESTDIR)$(PREFIX)/$$to" || exit 1; done

uninstall: ## removes from PREFIX what install has put there, and folders that are empty then
	$(Q)printf '%s\n' "$$INSTALLED" | while read -r mode from to; do [ -z "$$to" ] || { rm -f "$(DESTDIR)$(PREFIX)/$$to"; \
	    rmdir -p --ignore-fail-on-non-empty "$$(dirname "$(DESTDIR)$(PREFIX)/$$to")" 2>/dev/null; }; done; :

deb: $(PACKAGED) ## a Debian package, BUILD/memtide_VERSION-1_ARCH.deb
	$(Q)BUILD=$(BUILD) VERSION=$(VERSION) sh packaging/deb.sh

wheel: $(PACKAGED) ## a Python wheel, BUILD/memtide-VERSION-*.whl: pip install gives the program
	$(Q)python3 packaging/wheel.py $(BUILD) $(VERSION)

package-check: ## the Debian package and the wheel in clean Debian 12 roots (as root, with debootstrap)
	$(Q)$(MAKE) --no-print-directory deb && $(MAKE) --no-print-directory wheel && BUILD=$(BUILD) sh packaging/check.sh

clean: ## remove what was built
	rm -rf build

help: ## this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## /\1\t/' | expand -t 14

.PHONY: all cuda emulated shadow shadow-orders cuda-count test test-again test-threads wide-check threads-check test-avx512 test-avx2 test-isa cuda-test run article figures deps deps-dev asan asan-unit unit fuzz fuzz-readers soak soak-long overhead minimal-check numa-check arm64-check avx512-check slurm-check fit-check gpu-check gpu-pack bench bench-attention bench-bf16 bench-products bench-ranks peer-fuzz peer-eager train-check valgrind coverage coverage-run lint install uninstall deb wheel package-check clean help
# objects are kept. Not by .SECONDARY, under which a header that is gone would rebuild nothing.
.PRECIOUS: $(addprefix $(BUILD)/,%.o %.cu.o emulate/%.o emulate/%.cu.o shadow/%.cu.o wide/%.o $(ISAS:%=kernels/cpu/%/%.o))
-include $(shell find $(BUILD) -type f -name '*.d' 2>/dev/null)
endif
