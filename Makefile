# SPDX-License-Identifier: Apache-2.0
# attnd. Targets:
#
#   all            the daemon and its client, build/release/attnd and attnctl (default)
#   run            build and start it in the foreground with the built-in configuration
#   check-faults   builds with seven defects, one at a time, each of which the verification must find, and eight orders of sums, conformance
#   check-mutants  defects of tests/*/mutants.txt, one at a time: the simulation, conformance and emulation must find each; hours
#   demo           a workload with the lengths of a real trace: decoded, verified, reported; about half a minute
#   check-browser  the page in a headless Chromium, and what it computes under node; IMAGES=docs/images: its pictures are made anew
#   check          unit, model, conformance and integration tests; last line: N passed, N failed, N skipped
#   check-cuda     the tests on a GPU, as build/check-cuda/run.sh, which runs on any machine that has one
#   cuda-headers   CUDA's headers and NVRTC from PyPI into build/cuda, where there is no toolkit (docs/GPU.md)
#   check-full     the kernels over the whole grid, and compiled for every GPU and every preset
#   bench          benchmarks, with the machine they ran on
#   bench-cuda     attention on a GPU against its read roof; CSV=FILE gets the results; OLD=BINARY: beside that build, by turns
#   fuzz           libFuzzer over HTTP, JSON, safetensors, traces, configuration, keys and snapshots, FUZZ_SECONDS=60 each; wants clang
#   check-contract   schemathesis against a daemon for CONTRACT_SECONDS=600, from PyPI
#   asan tsan         `check` under sanitizers: addresses and undefined behaviour, threads
#   lint           clang-tidy, cppcheck and shellcheck, those that are installed
#   format         clang-format over all C files
#   checkdeps checkheaders   the include rules of docs/ARCHITECTURE.md; every header compiles alone
#   lib install-lib   libattnd.so and .a, attnd.h, attnd.pc: attention in the calling process (docs/LIBRARY.md); cJSON's source comes
#                     from Debian's archive, or from CJSON_DIR=FOLDER
#   wheel check-python   the Python package (clients/python), in WHEELS=build/release/wheel, CUDA=0: without the CUDA backend; its tests
#   bench-clients  what a call takes beyond its step, by registered memory and by HTTP; what a layer takes on a GPU
#                  through libattnd, and from regions of GPU memory; what a token takes a Hugging Face model
#   check-models   Hugging Face models through it; MODELS_PYTHON=PYTHON has torch and transformers
#   documents man  what is made of tables in the code: docs/METRICS.md, man/attnd.jsonc.5, man/attnd-keys.5
#   install uninstall  daemon, client, documents, presets, man pages, completion, unit, below DESTDIR and PREFIX; uninstall keeps changed files
#   dist deb       build/dist/attnd-VERSION.tar.gz, the same bytes each time; build/dist/attnd_VERSION_ARCH.deb
#   check-package  the Debian package in a bare Debian, from installation to purge; BASE=DIR: one that is there already
#   check-pods     the images, and pods of the Kubernetes manifest, run by podman; BASE=DIR, IMAGE=NAME, GPU_IMAGE=NAME: what is there already
#   check-cluster  the Kubernetes manifests in the cluster that KUBECONFIG names, whose nodes have IMAGE=localhost/attnd:0.1.0; scripts/small_cluster.sh makes one
#   check-systemd  the package under systemd, booted in a bare Debian: watchdog, crash, upgrade, sockets; BASE=DIR likewise
#   compile_commands.json clean
#
# Knobs: MODE=release|debug|asan|tsan  V=1 (show commands)  WERROR=1  CC CFLAGS LDFLAGS PREFIX DESTDIR

MODE ?= release
PREFIX ?= /usr/local
DESTDIR ?=
WERROR ?=
V ?=

B := build/$(MODE)
Q := $(if $(V),,@)
say = $(if $(V),@:,@printf '  %-6s %s\n')

PACKAGES := libuv libcjson libmd
# Of Debian's package node-llhttp: installed, or as scripts/fetch_llhttp.sh has it.
LLHTTP_ROOT := $(if $(wildcard /usr/share/llhttp/llhttp.c),,build/llhttp)
LLHTTP_DIR ?= $(LLHTTP_ROOT)/usr/share/llhttp
LLHTTP_INCLUDE ?= $(LLHTTP_ROOT)/usr/share/include/llhttp
# Of the repository that this is the top of, else what `make dist` has written into its archive.
COMMIT := $(shell bash scripts/version.sh commit)

MODE_FLAGS_release := -O2 -g -DATTND_CHECK=1
MODE_FLAGS_debug := -O1 -g -DATTND_CHECK=3
MODE_FLAGS_asan := -O1 -g -DATTND_CHECK=3 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
MODE_FLAGS_fuzz := -O1 -g -DATTND_CHECK=3 -DFUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION -fsanitize=address,fuzzer-no-link -fno-omit-frame-pointer
MODE_FLAGS_tsan := -O1 -g -DATTND_CHECK=1 -fsanitize=thread

FAULTS := 1 2 3 4 5 6 7 8 9 10
$(foreach f,$(FAULTS),$(eval MODE_FLAGS_fault-$(f) := -O2 -g -DATTND_CHECK=1 -DATTND_FAULT=$(f)))

WARNINGS := -Wall -Wextra -Wshadow -Wvla -Wundef -Wmissing-prototypes -Wstrict-prototypes -Wwrite-strings \
            -Wpointer-arith -Wcast-qual $(if $(WERROR),-Werror)
# The CUDA backend needs the toolkit's headers to be compiled, and nothing of CUDA to be linked.
CUDA_INCLUDE ?= $(if $(filter 0,$(CUDA)),,$(firstword $(patsubst %/cuda.h,%,\
	$(wildcard build/cuda/include/cuda.h /usr/local/cuda/include/cuda.h /usr/include/cuda.h))))
ifneq ($(wildcard build/cuda/lib),) # of `make cuda-headers`: NVRTC, too
export LD_LIBRARY_PATH := $(CURDIR)/build/cuda/lib$(if $(LD_LIBRARY_PATH),:$(LD_LIBRARY_PATH))
endif

# Bits are part of the contract, so contraction and fast math stay off whatever the user's CFLAGS say.
BIT_STABLE := -ffp-contract=off -fno-fast-math
CPPFLAGS_ALL := -I. -I$(LLHTTP_INCLUDE) $(if $(CUDA_INCLUDE),-isystem $(CUDA_INCLUDE)) -D_GNU_SOURCE -DLLHTTP_STRICT_MODE=1 $(CPPFLAGS)
# The library's objects are the daemon's: what attnd.h does not name is hidden.
CFLAGS_ALL = -std=c11 -fPIC -fvisibility=hidden $(WARNINGS) $(MODE_FLAGS_$(MODE)) $(shell pkg-config --cflags $(PACKAGES) 2>/dev/null) -pthread \
             $(CFLAGS) $(BIT_STABLE)
LDFLAGS_ALL = $(filter -fsanitize=%,$(MODE_FLAGS_$(MODE))) -pthread $(LDFLAGS)
LIBS = $(shell pkg-config --libs $(PACKAGES)) -lm

CUDA_SOURCES := $(filter-out kernels/cuda/absent.c,$(wildcard kernels/cuda/*.c))
FOLDERS := config allocator kernels kernels/reference kernels/cpu scheduler server
SOURCES := $(filter-out server/main.c,$(foreach f,$(FOLDERS),$(wildcard $(f)/*.c))) \
           $(if $(CUDA_INCLUDE),$(CUDA_SOURCES),kernels/cuda/absent.c kernels/cuda/lowering.c kernels/cuda/cubin_cache.c)
HEADERS := $(foreach f,$(FOLDERS) library $(if $(CUDA_INCLUDE),kernels/cuda kernels/cuda/device) clients clients/registered tests/unit tests/conformance tests/simulation tests/bench tests/fuzz,$(wildcard $(f)/*.h))
UNIT_SOURCES := $(wildcard tests/unit/*.c)
BENCH_SOURCES := $(wildcard tests/bench/*.c)
CONFORMANCE_SOURCES := $(wildcard tests/conformance/*.c)
SIMULATION_SOURCES := $(wildcard tests/simulation/*.c)
SCRIPTS := bootstrap .ci/run $(wildcard tests/*.sh tests/integration/*.sh tests/browser/*.sh tests/bench/*.sh clients/bench/*.sh \
           clients/completion/*.bash tests/cuda/*.sh scripts/*.sh packaging/debian/post* packaging/debian/pre*)

comma := ,
# The defects of config/fault.h are in a few sources: builds with one take all other objects from the release.
FAULTY := $(if $(filter fault-%,$(MODE)),$(shell grep -l 'config/fault.h' $(SOURCES)))
object = $(foreach s,$(1),$(if $(and $(FAULTY),$(filter-out $(FAULTY),$s)),build/release,$(B))/obj/$(s:.c=.o))
OBJECTS := $(call object,$(SOURCES))
LLHTTP_OBJECTS := $(addprefix $(if $(FAULTY),build/release,$(B))/obj/llhttp/,api.o http.o llhttp.o)
$(if $(FAULTY),$(if $(wildcard build/release/daemon.a),,$(error make MODE=$(MODE): takes objects of the release: say make all first)))

.PHONY: all
all: $(B)/attnd $(B)/attnctl

$(B)/daemon.a: $(OBJECTS) $(LLHTTP_OBJECTS)
	$(say) AR $@
	$(Q)rm -f $@ && $(AR) rcs $@ $^

# ---- the library: everything below server/, and what it takes of cJSON, without needing more than the C library

LIBRARY_SOURCES := $(filter-out server/%,$(SOURCES)) $(wildcard library/*.c)
LIBRARY_VERSION := $(shell sed -n 's/.*ATTND_VERSION "\(.*\)"/\1/p' config/version.h)
LIBRARY_FILE := libattnd.so.$(LIBRARY_VERSION)
CJSON_DIR ?= $(B)/cjson
.PHONY: lib
lib: $(B)/lib/$(LIBRARY_FILE) $(B)/lib/libattnd.a

$(B)/cjson/cJSON.c:
	$(say) GET $@
	$(Q)bash scripts/fetch_cjson.sh $(@D)

$(B)/obj/cjson.o: $(CJSON_DIR)/cJSON.c $(B)/flags
	$(say) CC $@
	$(Q)$(CC) -std=c11 -fPIC -fvisibility=hidden $(MODE_FLAGS_$(MODE)) $(CFLAGS) -w -c -o $@ $<

# One object, of which only the functions of attnd.h are still to be seen.
$(B)/lib/attnd.o: $(call object,$(LIBRARY_SOURCES)) $(B)/obj/cjson.o
	$(say) LD $@
	$(Q)mkdir -p $(@D)
	$(Q)$(LD) -r -o $@ $^
	$(Q)objcopy --localize-hidden $@

$(B)/lib/libattnd.a: $(B)/lib/attnd.o
	$(say) AR $@
	$(Q)rm -f $@ && $(AR) rcs $@ $^

$(B)/lib/$(LIBRARY_FILE): $(B)/lib/attnd.o library/libattnd.map
	$(say) LD $@
	$(Q)$(CC) -shared $(LDFLAGS_ALL) -Wl,-soname,libattnd.so.0 -Wl,--version-script=library/libattnd.map \
		$(if $(filter release debug,$(MODE)),-Wl$(comma)-z$(comma)defs) -o $@ $< -lm
	$(Q)ln -sf $(LIBRARY_FILE) $(@D)/libattnd.so.0
	$(Q)ln -sf libattnd.so.0 $(@D)/libattnd.so

$(B)/attnd: $(call object,server/main.c) $(B)/daemon.a
	$(say) LD $@
	$(Q)$(CC) $(LDFLAGS_ALL) -o $@ $^ $(LIBS)

CLIENT_SOURCES := $(wildcard clients/*.c)
$(B)/attnctl: $(call object,$(CLIENT_SOURCES) config/json.c config/nearest.c)
	$(say) LD $@
	$(Q)$(CC) $(LDFLAGS_ALL) -o $@ $^ $(shell pkg-config --libs libcurl libcjson libmd) -lm

# The inner loops want the vectoriser, whatever the rest is compiled with.
$(call object,$(wildcard kernels/cpu/cpu_*.c kernels/numeric.c)): ISA_FLAGS := $(if $(filter release fault-%,$(MODE)),-O3)

# Whatever files the text is read from by the assembler.
DEVICE_SOURCES := $(wildcard kernels/cuda/device/*) kernels/plan.h kernels/values.h config/block_copy.h config/geometry.h config/status.h
$(call object,kernels/cuda/sources.c): $(DEVICE_SOURCES)

# So are the files of the page.
$(call object,server/api_dashboard.c): $(wildcard server/dashboard/*)

ifneq ($(findstring x86_64,$(shell $(CC) -dumpmachine)),)
$(call object,kernels/cpu/cpu_avx2.c): ISA_FLAGS += -mavx2 -mfma -mf16c
$(call object,kernels/cpu/cpu_avx512.c): ISA_FLAGS += -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mf16c
$(call object,kernels/cpu/cpu_amx.c): ISA_FLAGS += -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512bf16 \
	-mavx512vbmi -mgfni -mamx-tile -mamx-bf16 -mfma -mf16c
endif

# Fuzzers are compiled by clang; what they are not for, by gcc: clang 14 does not know all of its processor features.
ifeq ($(MODE),fuzz)
$(call object,$(wildcard kernels/cpu/*.c)): override CC := gcc
$(call object,$(wildcard kernels/cpu/*.c)): MODE_FLAGS_fuzz := -O2 -g
endif

# What is not there of what a folder's sources include: said before the compiler says less. Looked for once, when the first of them is compiled.
hash := \#
missing = $(shell for tool in $(firstword $(CC)) pkg-config; do command -v $$tool >/dev/null || echo $$tool; done; \
	printf '$(hash)if !__has_include(<%s>)\n%s\n$(hash)endif\n' $(foreach h,$1,$h $h) | $(CC) $(CPPFLAGS_ALL) $(CFLAGS_ALL) -E -P -x c - 2>/dev/null; true)
MISSING_server = $(eval MISSING_server := $$(call missing,uv.h llhttp.h cjson/cJSON.h xxhash.h sha2.h))$(MISSING_server)
MISSING_clients = $(eval MISSING_clients := $$(call missing,curl/curl.h cjson/cJSON.h sha2.h))$(MISSING_clients)

$(B)/obj/%.o: %.c $(B)/flags
	$(if $(MISSING_$(firstword $(subst /, ,$<))),$(error missing: $(MISSING_$(firstword $(subst /, ,$<))); run: bash bootstrap))
	$(say) CC $@
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS_ALL) $(CFLAGS_ALL) $(ISA_FLAGS) -MMD -MP -c -o $@ $<

# Third-party source, compiled from where Debian installs it, with its own warnings left to its authors.
$(B)/obj/llhttp/%.o: $(LLHTTP_DIR)/%.c $(B)/flags
	$(say) CC $@
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS_ALL) -std=c11 -O2 -g -w $(filter -fsanitize=%,$(MODE_FLAGS_$(MODE))) -MMD -MP -c -o $@ $<

# Rebuild when the flags or the commit that --version prints change. The files are written as this is read: a recipe would see
# the variables of whichever target asked first.
FLAGS := $(CC) $(CPPFLAGS_ALL) $(CFLAGS_ALL)
$(shell mkdir -p $(B); echo '$(FLAGS)' | cmp -s - $(B)/flags || echo '$(FLAGS)' >$(B)/flags)
$(shell echo '$(COMMIT)' | cmp -s - $(B)/commit || echo '$(COMMIT)' >$(B)/commit)
VERSIONED := $(call object,$(shell grep -l ATTND_COMMIT server/*.c library/*.c clients/*.c))
$(VERSIONED): $(B)/commit
$(VERSIONED): CPPFLAGS_ALL += -DATTND_COMMIT='"$(COMMIT)"'

.SECONDARY:

.PHONY: run
run: $(B)/attnd
	@echo 'attnd serves http://127.0.0.1:8400; in another terminal try:'
	@echo '    curl -s http://127.0.0.1:8400/v1/info | jq .geometry'
	@echo '    curl -s -X POST http://127.0.0.1:8400/v1/sequences'
	@echo '    curl -s http://127.0.0.1:8400/stats | jq .pool'
	@$(B)/attnd

.PHONY: demo
demo: all
	@MODE=$(MODE) bash scripts/demo.sh

# ---- tests

$(B)/tests/unit: $(call object,$(UNIT_SOURCES)) $(B)/daemon.a
	$(say) LD $@
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS_ALL) -o $@ $^ $(shell pkg-config --libs check) $(LIBS)
$(call object,$(UNIT_SOURCES)): CFLAGS_ALL += $(shell pkg-config --cflags check)

$(B)/tests/allocator_model: $(call object,tests/simulation/allocator_model.c) $(B)/daemon.a
	$(say) LD $@
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS_ALL) -o $@ $^ $(LIBS)

# Calls that the simulation looks at: the linker has them come to tests/simulation first (watch.h, scarce_memory.h).
WATCHED := malloc calloc aligned_alloc free \
           block_pool_create block_pool_acquire block_pool_retain block_pool_release block_pool_publish \
           block_pool_unpublish block_pool_retire block_pool_trim \
           swap_ledger_init swap_ledger_park swap_ledger_unpark swap_ledger_detach swap_ledger_attach \
           step_begin step_skip step_submit step_retire unwritten_is_seen \
           reservation_run reservation_run_fork reservation_note_run reservation_end_run \
           workload_release workload_destroy sequence_ops_add_lease swapping_create sequences_note_reaped backend_ops_parameters log_line log_event

$(B)/tests/engine_simulation: $(call object,$(filter-out %/allocator_model.c,$(SIMULATION_SOURCES))) $(B)/daemon.a
	$(say) LD $@
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS_ALL) $(patsubst %,-Wl$(comma)--wrap=%,$(WATCHED)) -o $@ $^ $(LIBS)

$(B)/tests/conformance: $(call object,$(CONFORMANCE_SOURCES)) $(B)/daemon.a
	$(say) LD $@
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS_ALL) -o $@ $^ $(LIBS)

# As its users have it: attnd.h and the shared library; under a sanitizer, which a shared library has none of, the archive.
$(B)/tests/library: tests/library/library.c library/attnd.h $(B)/lib/$(LIBRARY_FILE) $(B)/lib/libattnd.a
	$(say) LD $@
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) -std=c11 -D_GNU_SOURCE -Ilibrary $(WARNINGS) $(MODE_FLAGS_$(MODE)) $(CFLAGS) $(LDFLAGS_ALL) \
		$(shell pkg-config --cflags check) -o $@ $< $(if $(filter release debug,$(MODE)),\
		-L$(B)/lib -lattnd -Wl$(comma)-rpath$(comma)'$$ORIGIN/../lib',$(B)/lib/libattnd.a) $(shell pkg-config --libs check) -lm

TESTS := $(B)/tests/unit $(B)/tests/allocator_model $(B)/tests/engine_simulation $(B)/tests/conformance

$(B)/bench/%: $(call object,tests/bench/%.c tests/bench/bench.c) $(B)/daemon.a
	$(say) LD $@
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS_ALL) -o $@ $^ $(LIBS)

# MODE=fuzz: the fuzzers; scripts/fuzz.sh builds and runs them.
FUZZERS := $(filter-out daemon,$(patsubst tests/fuzz/%.c,%,$(wildcard tests/fuzz/*.c)))
$(B)/fuzz/%: $(call object,tests/fuzz/%.c tests/fuzz/daemon.c) $(B)/daemon.a
	$(say) LD $@
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) -fsanitize=address,fuzzer -pthread $(LDFLAGS) -o $@ $^ $(LIBS)

.PHONY: fuzzers fuzz
fuzzers: $(patsubst %,$(B)/fuzz/%,$(FUZZERS))
FUZZ_SECONDS ?= 60
fuzz:
	@FUZZ_SECONDS=$(FUZZ_SECONDS) bash scripts/fuzz.sh

CONTRACT_SECONDS ?= 600
.PHONY: check-contract
check-contract: all
	@bash scripts/check_contract.sh $(CONTRACT_SECONDS)

# Clients with registered memory, that scripts run.
REGISTERED_SOURCES := $(wildcard clients/registered/*.c tests/registered/*.c) clients/bench/bench_registered.c
REGISTERED := $(patsubst tests/registered/%.c,$(B)/registered/%,$(wildcard tests/registered/*.c)) $(B)/registered/bench_registered
$(B)/registered/%: $(call object,tests/registered/%.c clients/registered/client.c)
	$(say) LD $@
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS_ALL) -o $@ $^

BENCHES := $(patsubst tests/bench/bench_%.c,$(B)/bench/bench_%,$(wildcard tests/bench/bench_*.c))

.PHONY: bench
bench: $(BENCHES) all
	$(Q)for b in $(filter-out %/bench_cuda,$(BENCHES)); do $$b || exit 1; done
	$(Q)ATTND=$(CURDIR)/$(B)/attnd bash tests/bench/bench_server.sh

# The tests on a GPU, as a folder that runs elsewhere; here too if there is one.
.PHONY: check-cuda
check-cuda: all $(REGISTERED) $(B)/tests/conformance $(B)/tests/library $(B)/bench/bench_cuda
	@bash scripts/check_cuda.sh

# Where there is no CUDA toolkit: 92 MB.
.PHONY: cuda-headers
cuda-headers:
	@bash scripts/fetch_cuda.sh

# On a machine with a GPU. Results are added to CSV. Whether there is a driver is seen before anything is built for it; to build it for another
# machine, name the program: make build/release/bench/bench_cuda.
CSV ?= $(B)/bench-cuda.csv
HAVE_DRIVER := /usr/bin/python3 -c 'import ctypes; ctypes.CDLL("libcuda.so.1")' 2>/dev/null || /sbin/ldconfig -p 2>/dev/null | grep -q 'libcuda\.so\.1 '
.PHONY: bench-cuda have-driver
have-driver:
	@{ $(HAVE_DRIVER); } || { echo 'no benchmark of CUDA: no CUDA driver (libcuda.so.1). For another machine: make $(B)/bench/bench_cuda' >&2; exit 1; }
bench-cuda: have-driver
	@$(MAKE) --no-print-directory $(B)/bench/bench_cuda
	$(Q)$(if $(OLD),/usr/bin/python3 tests/bench/compare_cuda.py $(OLD) $(B)/bench/bench_cuda,$(B)/bench/bench_cuda --csv $(CSV) --commit $(COMMIT) \
		--driver "$$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -1)")

.PHONY: check
check: $(B)/attnd $(B)/attnctl $(TESTS) $(BENCHES) $(REGISTERED) checkdeps
	@$(MAKE) -s $(CJSON_DIR)/cJSON.c || echo 'no source of cJSON: libattnd is not built, and its tests are skipped'
	$(Q)[ ! -e $(CJSON_DIR)/cJSON.c ] || $(MAKE) $(B)/tests/library
	@MODE=$(MODE) bash tests/run.sh

# The page, by Chromium and node; see tests/browser/run.sh.
.PHONY: check-browser
check-browser: $(B)/attnd $(B)/attnctl
	@MODE=$(MODE) IMAGES=$(IMAGES) bash tests/browser/run.sh

# Every triple of the grid's values instead of every pair, about a quarter of an hour; every preset for every GPU, some minutes.
.PHONY: check-full
check-full: $(B)/attnd $(B)/tests/conformance
	$(Q)$(B)/tests/conformance --full
	$(Q)FULL=1 ATTND=$(CURDIR)/$(B)/attnd bash tests/integration/15-compile-kernels.sh

# A build with one of the defects of config/fault.h: MODE=fault-1 and on.
.PHONY: check-faults
check-faults: all
	@bash scripts/check_faults.sh

.PHONY: check-mutants
check-mutants:
	@bash scripts/check_mutants.sh

.PHONY: asan tsan
asan tsan:
	@$(MAKE) --no-print-directory MODE=$@ check

.PHONY: checkdeps checkheaders lint format
checkdeps:
	@bash scripts/checkdeps.sh

# (cpu_simd.h and cpu_states.h are bodies of the paths of the CPU, and no headers of their own.)
checkheaders:
	$(Q)for header in $(filter-out kernels/cpu/cpu_simd.h kernels/cpu/cpu_states.h,$(HEADERS)); do \
		echo "#include \"$$header\"" | $(CC) $(CPPFLAGS_ALL) $(CFLAGS_ALL) $(shell pkg-config --cflags check) \
			-Werror -fsyntax-only -x c - || exit 1; \
	done
	@echo "checkheaders: $(words $(HEADERS)) headers compile alone"

lint: compile_commands.json
	@bash scripts/lint.sh $(SOURCES) $(CLIENT_SOURCES) $(wildcard clients/registered/*.c) $(wildcard library/*.c) server/main.c -- $(SCRIPTS)

format:
	$(Q)clang-format -i $(HEADERS) $(SOURCES) $(CLIENT_SOURCES) $(REGISTERED_SOURCES) server/main.c $(UNIT_SOURCES) $(BENCH_SOURCES) $(CONFORMANCE_SOURCES) \
		$(SIMULATION_SOURCES) $(wildcard tests/fuzz/*.c tests/emulation/*.h tests/emulation/*.cc tests/cuda/*.c kernels/cuda/device/*)

# Every C source that is compiled, with the flags that it is compiled with: of the lines that make would say.
compile_commands.json: FORCE
	@{ $(MAKE) --no-print-directory -nB V=1 MODE=$(MODE) all lib $(TESTS) $(BENCHES) $(REGISTERED) $(B)/registered/bench_registered \
			$(B)/tests/library $(if $(CUDA_INCLUDE),$(B)/bench/bench_library); \
		$(MAKE) --no-print-directory -nB V=1 MODE=fuzz fuzzers; } 2>/dev/null | bash scripts/compile_commands.sh >$@

# ---- the rest

.PHONY: install uninstall dist deb clean help documents man
install: all
	$(Q)BUILD=$(B) DESTDIR='$(DESTDIR)' PREFIX='$(PREFIX)' bash scripts/install.sh install daemon
uninstall:
	$(Q)for part in daemon lib; do \
		BUILD=$(B) DESTDIR='$(DESTDIR)' PREFIX='$(PREFIX)' bash scripts/install.sh uninstall $$part || exit 1; done

# build/dist/attnd-VERSION.tar.gz of HEAD, the same bytes each time; build/dist/attnd_*.deb of this tree.
dist:
	@bash scripts/make_dist.sh
deb: all
	@BUILD=$(B) bash scripts/make_deb.sh

# The package in a bare Debian: installed, started as its unit has it, upgraded, removed, purged. Root, debootstrap, network.
.PHONY: check-package
check-package: all
	@BUILD=$(B) bash scripts/check_package.sh

# Likewise under systemd, which boots there: systemd-nspawn, and a kernel that lets root mount.
.PHONY: check-systemd
check-systemd: all
	@BUILD=$(B) bash scripts/check_systemd.sh

# The images, and pods of packaging/kubernetes, run by podman: root, buildah, podman, network.
.PHONY: check-pods
check-pods: all
	@BUILD=$(B) bash scripts/check_pods.sh

# The manifests in a cluster: kubectl, and an image that its nodes have.
.PHONY: check-cluster
check-cluster: all
	@BUILD=$(B) bash scripts/check_cluster.sh

# What is made of tables in the code: docs/METRICS.md, man/attnd.jsonc.5 and man/attnd-keys.5.
documents man: $(B)/attnd
	$(Q)bash scripts/make_documents.sh $(CURDIR)/$(B)/attnd $(B)
	$(Q)cp $(B)/METRICS.md docs/METRICS.md
	$(Q)cp $(B)/attnd.jsonc.5 $(B)/attnd-keys.5 man/

# The Python package, with the library in it. It has the CUDA backend, unless CUDA=0 says that it need not.
CUDA ?= 1
WHEELS ?= $(B)/wheel
.PHONY: wheel check-python
wheel: $(B)/lib/$(LIBRARY_FILE)
	$(Q)[ "$(CUDA)" = 0 ] || [ -n "$(CUDA_INCLUDE)" ] || \
		{ echo 'make wheel: no CUDA headers, so the wheel would have no CUDA backend; CUDA=0 makes it without'; exit 1; }
	$(Q)bash scripts/make_wheel.sh $< $(LIBRARY_VERSION) $(WHEELS)

# The wheel in empty environments, with the oldest and the newest NumPy.
check-python: $(B)/lib/$(LIBRARY_FILE)
	@ATTND=$(CURDIR)/$(B)/attnd bash tests/integration/47-python.sh

# What a call costs clients with registered memory beyond its step, on the CPU; and a layer those of libattnd, on a GPU.
.PHONY: bench-clients
bench-clients: $(B)/attnd $(B)/lib/$(LIBRARY_FILE) $(REGISTERED) $(B)/registered/bench_registered $(if $(CUDA_INCLUDE),$(B)/bench/bench_library)
	$(Q)ATTND=$(CURDIR)/$(B)/attnd bash clients/bench/bench_registered.sh
	$(Q)$(if $(CUDA_INCLUDE),$(B)/bench/bench_library,echo 'skip bench_library: no CUDA headers')
	$(Q)ATTND=$(CURDIR)/$(B)/attnd bash clients/bench/bench_gpu_regions.sh
	$(Q)if $(MODELS_PYTHON) -c 'import torch, transformers' 2>/dev/null; then \
		ATTND_LIBRARY=$(CURDIR)/$(B)/lib/libattnd.so PYTHONPATH=$(CURDIR)/clients/python $(MODELS_PYTHON) -W ignore clients/bench/bench_models.py; \
		else echo 'skip bench_models: $(MODELS_PYTHON) has no torch and transformers (MODELS_PYTHON=PYTHON)'; fi
$(B)/registered/bench_registered: $(call object,clients/bench/bench_registered.c clients/registered/client.c)
	$(say) LD $@
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS_ALL) -o $@ $^
$(B)/bench/bench_library: clients/bench/bench_library.c library/attnd.h $(B)/lib/libattnd.a
	$(say) LD $@
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) -std=c11 -D_GNU_SOURCE -Ilibrary -isystem $(CUDA_INCLUDE) $(WARNINGS) $(MODE_FLAGS_$(MODE)) $(CFLAGS) $(LDFLAGS_ALL) \
		-o $@ $< $(B)/lib/libattnd.a -pthread -lm -ldl

# Hugging Face models through attnd, by a Python that has torch and transformers: MODELS_PYTHON=venv/bin/python
MODELS_PYTHON ?= python3
.PHONY: check-models
check-models: $(B)/lib/$(LIBRARY_FILE) $(B)/attnd
	@export ATTND=$(CURDIR)/$(B)/attnd ATTND_LIBRARY=$(CURDIR)/$(B)/lib/libattnd.so PYTHONPATH=$(CURDIR)/clients/python; \
	for program in tests/test_float32.py tests/test_transformers.py examples/generate.py examples/beam.py; do \
		$(MODELS_PYTHON) -W ignore clients/python/$$program || exit 1; done

.PHONY: install-lib
install-lib: lib
	$(Q)BUILD=$(B) DESTDIR='$(DESTDIR)' PREFIX='$(PREFIX)' bash scripts/install.sh install lib

clean:
	rm -rf $(filter-out build/llhttp,$(wildcard build/*)) compile_commands.json

help:
	@sed -n '2,/^$$/s/^# \{0,1\}//p' Makefile

.PHONY: FORCE # .SECONDARY would have it be there already
FORCE:

-include $(shell find build/$(MODE)/obj -name '*.d' 2>/dev/null)
