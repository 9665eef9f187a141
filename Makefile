# Laconic. `make serve` and `make test` are all a newcomer needs; `make help` lists the rest.
# Each variant (release, asan, ubsan, tsan, cov) builds into its own folder under build/.

V       ?= release
BUILD   ?= $(if $(filter release,$(V)),build,build/$(V))
CC      ?= gcc
ifeq ($(origin CC),default)
CC      := gcc
endif
ROOMS   := core core/cpu alloc jit models sched io cmd
TARGET  := $(shell $(CC) -dumpmachine 2>/dev/null)

WARN    := -Wall -Wextra -Wconversion -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla -Werror
# No contraction: a*b+c is two roundings unless fmaf is written (bit-equality, DESIGN.md 5).
CFLAGS  := -std=c17 -D_GNU_SOURCE -O2 -g -fno-omit-frame-pointer -ffp-contract=off -fno-math-errno \
           -fno-semantic-interposition -pthread $(WARN) -I. -MMD -MP
LIBS    := -ljemalloc -luring -lxxhash -lssl -lcrypto -lpcre2-8 -ljansson -lz -ldl -lm -pthread
ifeq ($(V),asan)
CFLAGS  += -fsanitize=address -fsanitize-address-use-after-scope
LDFLAGS += -fsanitize=address
endif
ifeq ($(V),ubsan)
CFLAGS  += -fsanitize=undefined -fno-sanitize-recover=undefined
LDFLAGS += -fsanitize=undefined
endif
ifeq ($(V),tsan)
CFLAGS  += -fsanitize=thread
LDFLAGS += -fsanitize=thread
endif
ifeq ($(V),cov)
CFLAGS  += --coverage -O1
LDFLAGS += --coverage
endif

# One translation unit per instruction set; the file name's last word says which.
# The scalar path is the oracle; what the compiler may vectorise there does not change a bit.
ISA_scalar  := -O3
ISA_avx2    := -mavx2 -mfma -mf16c
ISA_avxvnni := $(ISA_avx2) -mavxvnni
ISA_avx512  := $(ISA_avx2) -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni
ISA_amx     := $(ISA_avx512) -mamx-tile -mamx-int8
ISA_neon    := -march=armv8.2-a+dotprod+fp16
isa_flags   = $(ISA_$(lastword $(subst _, ,$(basename $(notdir $(1))))))
ifneq ($(filter x86_64%,$(TARGET)),)
ISA_SKIP    := %_neon.c
else
ISA_SKIP    := %_avx2.c %_avxvnni.c %_avx512.c %_amx.c
endif

room_src    = $(filter-out $(ISA_SKIP) cmd/main.c,$(wildcard $(1)/*.c))
room_obj    = $(patsubst %.c,$(BUILD)/obj/%.o,$(call room_src,$(1)))
LLHTTP_DIR  := /usr/share/llhttp
LLHTTP_OBJ  := $(addprefix $(BUILD)/obj/llhttp/,api.o http.o llhttp.o)

LIB_core    := $(BUILD)/libcore.a
LIB_alloc   := $(BUILD)/liballoc.a
LIB_jit     := $(BUILD)/libjit.a
LIB_models  := $(BUILD)/libmodels.a
LIB_sched   := $(BUILD)/libsched.a
LIB_io      := $(BUILD)/libio.a
LIB_cmd     := $(BUILD)/libcmd.a
LIB_softgpu := $(BUILD)/libsoftgpu.a
ALL_LIBS    := $(LIB_cmd) $(LIB_io) $(LIB_sched) $(LIB_models) $(LIB_jit) $(LIB_core) $(LIB_alloc)

BIN := $(BUILD)/laconic

.PHONY: all serve test test-long test-core test-alloc test-jit test-models test-sched test-io test-cmd test-softgpu \
        asan ubsan tsan fuzz perf perf-quick perf-cpu lint format setup cov clean help
all: $(BIN)

$(BIN): $(BUILD)/obj/cmd/main.o $(ALL_LIBS)
	@echo "  link   $@"
	@$(CC) $(LDFLAGS) -o $@ $< -Wl,--start-group $(ALL_LIBS) -Wl,--end-group $(LIBS)

# core/cpu may include alloc, so it lives in the same archive as core.
# KERNELS= leaves them out (the fuzzers need none, and clang takes minutes for each).
KERNELS     ?= $(call room_obj,core/cpu)
$(LIB_core): $(call room_obj,core) $(KERNELS)
$(LIB_alloc): $(call room_obj,alloc)
$(LIB_jit): $(call room_obj,jit)
$(LIB_models): $(call room_obj,models)
$(LIB_sched): $(call room_obj,sched)
$(LIB_io): $(call room_obj,io) $(LLHTTP_OBJ)
$(LIB_cmd): $(call room_obj,cmd)
# The software CUDA device: the interpreter and checker; the driver's calls are on top of it.
SOFTGPU_OBJ := $(filter-out $(BUILD)/obj/tests/softgpu/test_% $(BUILD)/obj/tests/softgpu/driver%,\
                 $(call room_obj,tests/softgpu))
$(LIB_softgpu): $(SOFTGPU_OBJ)
$(BUILD)/lib%.a:
	@rm -f $@ && ar rcs $@ $^

$(BUILD)/obj/llhttp/%.o: $(LLHTTP_DIR)/%.c Makefile
	@mkdir -p $(@D)
	@$(CC) -O2 -g -DLLHTTP_STRICT_MODE=1 -I/usr/include/llhttp -I/usr/share/include/llhttp -c -o $@ $<
$(BUILD)/obj/%.o: %.c Makefile
	@mkdir -p $(@D)
	@echo "  cc     $<"
	@$(CC) $(CFLAGS) $(call isa_flags,$<) -I/usr/share/include/llhttp -c -o $@ $<

$(BUILD)/obj/io/page.o: io/page.html
$(BUILD)/obj/jit/kernel_text.o: $(wildcard jit/kernels/*.cu)
$(BUILD)/obj/models/task_default.o: assets/task.lact
$(BUILD)/obj/models/sidecar_default.o: assets/default.lacs

# Tests: tests/<room>/test_*.c is one cmocka program each, linked with the rooms it may use.
ROOM_LIBS_core   := $(LIB_core) $(LIB_alloc)
ROOM_LIBS_alloc  := $(LIB_core) $(LIB_alloc)
ROOM_LIBS_jit    := $(LIB_jit) $(LIB_core) $(LIB_alloc)
ROOM_LIBS_models := $(LIB_models) $(LIB_core) $(LIB_alloc)
ROOM_LIBS_sched  := $(LIB_sched) $(LIB_models) $(LIB_core) $(LIB_alloc)
ROOM_LIBS_io     := $(LIB_io) $(LIB_core) $(LIB_alloc)
ROOM_LIBS_cmd    := $(ALL_LIBS)
ROOM_LIBS_softgpu := $(LIB_softgpu) $(LIB_core) $(LIB_alloc)
TEST_ROOMS       := core alloc jit models sched io cmd softgpu
test_bins         = $(patsubst tests/%.c,$(BUILD)/tests/%,$(wildcard tests/$(1)/test_*.c))
define room_tests
$(BUILD)/tests/$(1)/%: $(BUILD)/obj/tests/$(1)/%.o $$(ROOM_LIBS_$(1))
	@mkdir -p $$(@D)
	@$$(CC) $$(LDFLAGS) -o $$@ $$< -Wl,--start-group $$(ROOM_LIBS_$(1)) -Wl,--end-group -lcmocka $$(LIBS)
test-$(1): $$(call test_bins,$(1))
	@BUILD=$$(BUILD) tests/run.sh $$(call test_bins,$(1))
endef
$(foreach r,$(TEST_ROOMS),$(eval $(call room_tests,$(r))))
# A stand-in for a profiler, loaded by tests/core/test_nvtx.c.
NVTX_TOOL := $(BUILD)/tests/core/nvtx_tool.so
$(NVTX_TOOL): $(BUILD)/pic/tests/core/nvtx_tool.o
	@mkdir -p $(@D)
	@$(CC) $(LDFLAGS) -shared -o $@ $<
test-core test-jit: $(NVTX_TOOL)
# serve with planted drifts, for tests of the rollback monitor.
PLANTED := $(BUILD)/tests/planted/planted_serve
$(PLANTED): $(BUILD)/obj/tests/planted/planted_serve.o $(ALL_LIBS)
	@mkdir -p $(@D)
	@$(CC) $(LDFLAGS) -Wl,--wrap=cpu_backend_init -o $@ $< -Wl,--start-group $(ALL_LIBS) -Wl,--end-group $(LIBS)
test-cmd: $(PLANTED)
# The software CUDA device, a libcuda.so.1 of our own (tests/softgpu/softgpu.h); tests load it.
SOFTGPU     := $(BUILD)/tests/softgpu/libcuda.so.1
SOFTGPU_SRC := $(filter-out tests/softgpu/test_% $(ISA_SKIP),$(wildcard tests/softgpu/*.c)) \
               core/status.c core/buffer.c core/json_writer.c
$(BUILD)/pic/%.o: %.c Makefile
	@mkdir -p $(@D)
	@echo "  cc     $< (pic)"
	@$(CC) $(CFLAGS) $(call isa_flags,$<) -fPIC -fvisibility=hidden -c -o $@ $<
$(SOFTGPU): $(SOFTGPU_SRC:%.c=$(BUILD)/pic/%.o)
	@mkdir -p $(@D)
	@echo "  link   $@"
	@$(CC) $(LDFLAGS) -shared -Wl,-soname,libcuda.so.1 -Wl,-z,defs -o $@ $^ -lxxhash -lm -pthread
test-core test-alloc test-jit test-cmd test-softgpu: $(SOFTGPU)
ALL_TEST_BINS := $(foreach r,$(TEST_ROOMS),$(call test_bins,$(r)))
.SECONDARY:

-include $(shell find $(BUILD)/obj $(BUILD)/pic -name '*.d' 2>/dev/null)

# `make serve` and `make test` start from a bare machine: packages first, then the rest in a second
# make that sees the installed headers.
MODEL ?= $(shell scripts/model.sh path)
setup:
	@scripts/setup.sh
serve: setup
	@$(MAKE) --no-print-directory -j$$(nproc) all
	@exec $(BUILD)/laconic serve "$$(scripts/model.sh fetch)" $(ARGS)
test:
	@scripts/setup.sh test
	@$(MAKE) --no-print-directory -j$$(nproc) all test-bins
	@BUILD=$(BUILD) tests/all.sh
test-long:
	@scripts/setup.sh test
	@$(MAKE) --no-print-directory -j$$(nproc) all test-bins
	@BUILD=$(BUILD) LONG=1 tests/all.sh
.PHONY: test-bins
# Tools of tests/gpu_check.sh.
GPU_TOOLS := $(BUILD)/tests/jit/record_vectors $(BUILD)/tests/jit/shaped_model
# Tools of tests/models/compare_*.py, no tests of their own.
test-bins: $(ALL_TEST_BINS) $(SOFTGPU) $(NVTX_TOOL) $(PLANTED) $(BUILD)/tests/core/dequantise_dump $(BUILD)/tests/models/encode_dump \
           $(GPU_TOOLS)

asan ubsan tsan:
	@scripts/setup.sh test
	@$(MAKE) --no-print-directory V=$@ -j$$(nproc) all test-bins
	@V=$@ BUILD=build/$@ tests/all.sh
fuzz:
	@tests/fuzz/run.sh
lint:
	@scripts/lint.sh
format:
	@clang-format -i $$(git ls-files '*.c' '*.h' | grep -v '_table.h$$')
perf: all
	@perf/run.sh
perf-quick: all
	@QUICK=1 perf/run.sh
$(BUILD)/perf/cpu/kernels: $(BUILD)/obj/perf/cpu/kernels.o $(LIB_core) $(LIB_alloc)
	@mkdir -p $(@D)
	@$(CC) $(LDFLAGS) -o $@ $< -Wl,--start-group $(LIB_core) $(LIB_alloc) -Wl,--end-group $(LIBS)
perf-cpu: all $(BUILD)/perf/cpu/kernels
	@BUILD=$(BUILD) perf/cpu/run.sh
clean:
	rm -rf build
help:
	@echo "make serve      install what is missing, build, fetch the default model, serve it on 127.0.0.1:8080"
	@echo "make test       the same set-up, then every test (ends with: N passed, N failed)"
	@echo "make test-long  test, plus the slow ones (soak, 10,000 requests, second model)"
	@echo "make asan|ubsan|tsan  the suite under a sanitizer    make fuzz   each fuzzer for a minute"
	@echo "make perf       side by side with the peer           make lint   include table, style, format"
	@echo "make perf-cpu   each CPU kernel against this machine's limits; where a step's time goes"
