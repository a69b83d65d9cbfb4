# SPDX-License-Identifier: Apache-2.0
# GNU make. Targets: all examples examples-cuda check check-long posix helgrind model soak life mutants fuzz bench bench-rdma ptx paging-ptx install uninstall format lint clean. Variables: CC, DEBUG=1 (checks the
# order of locks, as the sanitizer builds do), SANITIZE=address|thread|fuzz (clang's libFuzzer, for `make fuzz`), HELGRIND=1 (for `make helgrind`), BREAK=<rule> (a build
# with one rule broken on purpose, see tests/README.md), V=1.
comma := ,
space := $(comma:,=) $(comma:,=)
VERSION := 0.1.0
SOMAJOR := 0
PREFIX ?= /usr/local
override PREFIX := $(patsubst %/,%,$(PREFIX))
DESTDIR ?=
ifeq ($(origin CC),default)
CC := gcc
endif
ifneq ($(V),1)
MAKEFLAGS += --silent
endif
PKG_CONFIG ?= pkg-config
SANITIZE ?=
DEBUG ?=
HELGRIND ?=
BREAK ?=

flavour := $(subst $(space),-,$(notdir $(strip $(CC))))$(if $(SANITIZE),-$(SANITIZE))$(if $(DEBUG),-debug)$(if $(HELGRIND),-helgrind)$(if $(BREAK),-$(BREAK))
BUILD ?= build/$(flavour)
# The plain build leaves its programs at the top level; the others keep theirs in their build folder.
BIN := $(if $(SANITIZE)$(DEBUG)$(HELGRIND)$(BREAK),$(BUILD),.)

packages := fuse3 liburing libxxhash jansson
missing := $(shell for p in $(packages) libibverbs librdmacm; do $(PKG_CONFIG) --exists $$p || echo $$p; done)
ifneq ($(filter-out clean uninstall format ptx paging-ptx,$(or $(MAKECMDGOALS),all)),)
ifneq ($(strip $(missing)),)
$(error missing development packages: $(missing) (Debian: sudo sh examples/packages.sh run))
endif
endif

CPPFLAGS += -D_GNU_SOURCE -D_FILE_OFFSET_BITS=64 -I. -DGAIAFS_VERSION='"$(VERSION)"' $(if $(BREAK),-DGAIAFS_BREAK_$(BREAK)=1) \
	$(if $(DEBUG)$(SANITIZE),-DGAIAFS_CHECK_LOCKS=1) $(if $(HELGRIND),-DGAIAFS_UNDER_HELGRIND=1)
# A sanitizer's build takes half the time with less of both; the warnings that only a good optimizer gets right are the plain build's.
CFLAGS ?= $(if $(SANITIZE),-O1 -g1,-O2 -g)
guesses := $(if $(findstring clang,$(CC)),,-Wno-maybe-uninitialized -Wno-format-truncation -Wno-stringop-truncation)
CFLAGS += $(if $(SANITIZE),$(guesses))
CFLAGS += -std=gnu11 -Wall -Wextra -Werror -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla -fvisibility=hidden -fPIC -pthread -MMD -MP
LDFLAGS += -pthread
# It takes half the time for a program that is linked oftener than it runs. (Debian 12 has it in binutils.)
LDFLAGS += $(if $(SANITIZE),$(if $(shell command -v ld.gold),-fuse-ld=gold))
ifeq ($(SANITIZE),address)
CFLAGS += -fsanitize=address,undefined -fno-omit-frame-pointer -fno-sanitize-recover=undefined
LDFLAGS += -fsanitize=address,undefined
else ifeq ($(SANITIZE),fuzz)
CFLAGS += -fsanitize=fuzzer-no-link,address,undefined -fno-omit-frame-pointer -fno-sanitize-recover=undefined
LDFLAGS += -fsanitize=address,undefined
else ifeq ($(SANITIZE),thread)
CFLAGS += -fsanitize=thread -fno-omit-frame-pointer
LDFLAGS += -fsanitize=thread
endif
# Device code of programs is C++: gpu/*.cuh, which only tests compile here.
ifeq ($(origin CXX),default)
CXX := $(if $(findstring clang,$(CC)),$(subst clang,clang++,$(CC)),$(if $(findstring gcc,$(CC)),$(subst gcc,g++,$(CC)),g++))
endif
CXXFLAGS = $(filter-out -std=gnu11 -Wstrict-prototypes -Wmissing-prototypes,$(CFLAGS)) -std=gnu++17
PKG_CFLAGS := $(shell $(PKG_CONFIG) --cflags $(packages) 2>/dev/null)
PKG_LIBS := $(shell $(PKG_CONFIG) --libs $(packages) 2>/dev/null)
# Programs without a transport in them do without these.
PKG_LIBS += -Wl,--as-needed $(shell $(PKG_CONFIG) --libs librdmacm libibverbs 2>/dev/null) -Wl,--no-as-needed
CMOCKA_LIBS := $(shell $(PKG_CONFIG) --libs cmocka 2>/dev/null)
CPPFLAGS += $(PKG_CFLAGS)

# What goes where: gpu/home_*.c is the daemon's half of a device; loading NVIDIA's driver is everybody's, listing its GPUs
# gaiactl's; the device kernels are the daemon's and libgaia's, as PTX (for a CPU they are the tests'); the rest is libgaia.
cuda_src := gpu/cuda_load.c gpu/cuda_device.c gpu/cuda_kernel.c
home_src := $(wildcard base/*.c consistency/*.c io/*.c cache/*.c gpu/home_*.c) $(cuda_src) gpu/kernels_ptx.c \
	$(filter-out fs/mount.c fs/gaiactl%.c,$(wildcard fs/*.c))
lib_src := $(filter-out gpu/home_%.c gpu/cuda_list.c gpu/kernels.c,$(wildcard gpu/*.c)) io/message.c io/reach.c \
	$(wildcard base/*.c)
ctl_src := fs/gaiactl.c fs/gaiactl_devices.c fs/escape.c gpu/cuda_list.c gpu/cuda_load.c io/direct.c io/message.c io/reach.c base/lock.c \
	base/process.c base/thread.c

obj = $(patsubst %.c,$(BUILD)/%.o,$(1))
home_a := $(BUILD)/libhome.a
so := $(BIN)/libgaia.so
# Under TSan not those that start no thread; nor fuzzers, as some of their inputs store where they should not: those are races.
single := $(addprefix tests/base/test_,descriptor read size) tests/consistency/test_% $(addprefix tests/io/test_,direct members message) \
	$(addprefix tests/gpu/test_,kernels touch) $(addprefix tests/fs/test_,escape listener loop open_reply options token) \
	$(addprefix tests/cache/test_,device evict_staying followed hosted index maps overrule policy readahead sure table window)
tests := $(patsubst %.c,$(BUILD)/%,$(filter-out $(if $(filter thread,$(SANITIZE)),$(addsuffix .c,$(single)) tests/fuzz/%), \
	$(wildcard $(addsuffix /test_*.c,$(addprefix tests/,base consistency io cache gpu fs fuzz)))))
# Lane by lane is coroutines, which ASan does not follow. With threads in their place TSan sees more.
cxx_tests := $(patsubst %.cc,$(BUILD)/%,$(filter-out $(if $(filter address thread,$(SANITIZE)),%lockstep.cc),$(wildcard tests/gpu/test_*.cc)))
benches := $(patsubst %.c,$(BUILD)/%,$(wildcard tests/bench/bench_*.c))
tools := $(patsubst %.c,$(BUILD)/%,$(wildcard tests/mount/tool_*.c tests/vm/tool_*.c))
cxx_tools := $(patsubst %.cc,$(BUILD)/%,$(wildcard tests/mount/tool_*.cc))
gpu_own := $(BUILD)/tests/gpu/own
gpu_bench := $(BUILD)/tests/gpu/bench
gpu_paging := $(BUILD)/tests/gpu/paging $(BUILD)/tests/gpu/bench_demand
vm := $(BUILD)/tests/vm/nosync.so
standins := $(BUILD)/cuda/libcuda.so.1 $(BUILD)/cuda/old/libcuda.so.1
examples := $(patsubst %.c,$(BUILD)/%,$(wildcard examples/*.c examples/*/*.c))
# The CUDA examples twice: as C++ for the CPU, and with NVIDIA's compiler, where there is one.
cuda_examples := $(patsubst %.cu,$(BUILD)/%,$(wildcard examples/cuda/*.cu))
nvcc_examples := $(patsubst $(BUILD)/examples/cuda/%,$(BUILD)/examples/nvcc/%,$(cuda_examples))
NVCC ?= $(firstword $(shell command -v nvcc) $(wildcard /usr/local/cuda/bin/nvcc))

# The same programs with every call that can fail led through a table of the tests (tests/faults/table.c).
faults := $(BUILD)/faults/mount.gaiafs $(BUILD)/faults/libgaia.so
wrapped := $(shell sed -n 's/^\(ROW\|REPLY\|PEER\)(\(.*\))$$/-Wl,--wrap=\2/p' tests/faults/rows.h) -Wl,--wrap=free

.PHONY: all check check-long posix helgrind model soak life mutants fuzz bench bench-rdma ptx paging-ptx install uninstall format lint clean tests units tools mount-tools benches examples examples-cuda
all: $(BIN)/mount.gaiafs $(BIN)/gaiactl $(so)
tests: all $(tests) $(cxx_tests) $(tools) $(cxx_tools) $(vm) $(standins) $(faults) $(gpu_own) $(gpu_bench) $(gpu_paging)
# Of these what the steps of tests/run.sh with a sanitizer need.
units: all $(tests) $(cxx_tests) $(filter $(BUILD)/tests/mount/%,$(tools)) $(cxx_tools) $(standins) $(faults)
# Of the tools what mount tests use that need no GPU.
mount-tools: all $(faults) $(filter $(BUILD)/tests/mount/%,$(tools))
tools: $(tools) $(cxx_tools) $(vm) $(standins) $(gpu_own) $(gpu_bench) $(gpu_paging)
benches: all $(benches) $(standins)
examples: all $(examples) $(cuda_examples)
ifneq ($(NVCC),)
# A toolkit may come without cuBLAS.
cublas := $(wildcard $(dir $(NVCC))../include/cublas_v2.h /usr/local/cuda/include/cublas_v2.h /usr/include/cublas_v2.h)
examples-cuda: all $(if $(cublas),$(nvcc_examples),$(filter-out %/sgemm,$(nvcc_examples)))
	$(if $(cublas),,@echo 'examples-cuda: sgemm is skipped: there is no cuBLAS here')
else
examples-cuda:
	@echo 'examples-cuda: skipped: there is no nvcc here (of NVIDIA'"'"'s CUDA toolkit; NVCC=PATH says where)'
endif

$(home_a): $(call obj,$(home_src))
	@rm -f $@
	$(AR) rcs $@ $^

# Who last linked what is at the top level: compilers take turns there, and a date does not tell whose is newer.
ifeq ($(BIN),.)
linked_by := build/linked-by
$(linked_by): again
	@mkdir -p $(@D)
	@echo $(flavour) | cmp -s - $@ || echo $(flavour) >$@
.PHONY: again
endif

$(BIN)/mount.gaiafs: $(call obj,fs/mount.c) $(home_a) $(linked_by)
	$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $(filter %.o %.a,$^) $(PKG_LIBS)

$(BIN)/gaiactl: $(call obj,$(ctl_src)) $(linked_by)
	$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $(filter %.o,$^) $(shell $(PKG_CONFIG) --libs jansson)

$(so).$(VERSION): $(call obj,$(lib_src)) gpu/libgaia.map $(linked_by)
	$(CC) $(CFLAGS) $(LDFLAGS) -shared -Wl,-soname,libgaia.so.$(SOMAJOR) -Wl,--version-script=gpu/libgaia.map -Wl,-z,defs -Wl,-z,nodelete -o $@ $(filter %.o,$^)
$(so): $(so).$(VERSION)
	ln -sf $(notdir $<) $(so).$(SOMAJOR)
	ln -sf $(notdir $<) $@
ifneq ($(SANITIZE),)
$(so).$(VERSION): LDFLAGS := $(filter-out -Wl$(comma)-z$(comma)defs,$(LDFLAGS))
endif

$(BUILD)/faults/mount.gaiafs: $(call obj,fs/mount.c tests/faults/table.c) $(home_a)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(LDFLAGS) $(wrapped) -o $@ $^ $(PKG_LIBS)
$(BUILD)/faults/libgaia.so: $(call obj,$(lib_src) tests/faults/table.c) gpu/libgaia.map
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(LDFLAGS) $(wrapped) -shared -Wl,--version-script=gpu/libgaia.map -o $@ $(filter %.o,$^)

$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	@echo "  CC $<"
	$(CC) $(CPPFLAGS) $(CFLAGS) -c -o $@ $<

$(BUILD)/%.cc.o: %.cc
	@mkdir -p $(@D)
	@echo "  CXX $<"
	$(CXX) $(CPPFLAGS) $(CXXFLAGS) -c -o $@ $<

# Unit tests and benchmarks of the home's parts. Fuzzers have libFuzzer's main(), or one of random inputs.
fuzzers := $(filter $(BUILD)/tests/fuzz/%,$(tests))
ifeq ($(SANITIZE),fuzz)
$(fuzzers): LDFLAGS += -fsanitize=fuzzer
else
$(fuzzers): $(call obj,tests/fuzz/main.c)
endif
# What they have in place of a mount's.
$(BUILD)/tests/fuzz/test_options: LDFLAGS += -Wl,--wrap=fs_log
$(BUILD)/tests/fuzz/test_client: LDFLAGS += -Wl,--wrap=fs_log,--wrap=token_take,--wrap=nodes_track_to_map,--wrap=inode_put
$(tests): $(BUILD)/%: $(BUILD)/%.o $(home_a)
	$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $(filter %.o,$^) $(home_a) $(PKG_LIBS) $(CMOCKA_LIBS)
# Tests are compiled oftener than they run: with less of the optimizer, whose warnings are the sources', and of UBSan, which
# looks at the sources. (What the C++ ones and these two include is what they test.)
$(filter-out %/test_lock.o %/test_merge.o,$(tests:=.o)): CFLAGS += $(if $(SANITIZE),-O0 -fno-sanitize=undefined,-O1 -g1 $(guesses))
$(cxx_tests:=.cc.o): CFLAGS += $(if $(SANITIZE),,-O1 -g1 $(guesses))
$(cxx_tests): $(BUILD)/%: $(BUILD)/%.cc.o
	$(CXX) $(CXXFLAGS) $(LDFLAGS) -o $@ $^ $(CMOCKA_LIBS) $(shell $(PKG_CONFIG) --libs libxxhash)
$(cxx_tests): $(call obj,gpu/kernels.c)
$(cxx_tools:=.cc.o): CXXFLAGS += -Wno-shadow
$(cxx_tools): $(BUILD)/%: $(BUILD)/%.cc.o $(so)
	$(CXX) $(CXXFLAGS) $(LDFLAGS) -o $@ $< -L$(BIN) -lgaia -Wl,-rpath,'$$ORIGIN/../../..' '-Wl,-rpath,$(abspath $(BIN))'
$(BUILD)/tests/gpu/test_kernels: $(call obj,gpu/kernels.c)
$(BUILD)/tests/fuzz/test_client $(BUILD)/tests/gpu/test_touch: $(call obj,gpu/touch.c)
$(BUILD)/tests/gpu/test_home_lanes: LDFLAGS += -Wl,--wrap=pthread_create
$(BUILD)/tests/cache/test_meet: LDFLAGS += -Wl,--wrap=call_connect,--wrap=pthread_cond_wait
$(BUILD)/tests/fuzz/test_demand $(BUILD)/tests/gpu/test_demand_server: $(call obj,gpu/demand_server.c gpu/touch.c base/process.c)
$(BUILD)/gpu/kernels_ptx.o: gpu/kernels.ptx
# These walk through the calls of the transport, and of calls on it, that can fail.
walks := $(BUILD)/tests/io/test_transport_calls $(BUILD)/tests/io/test_call_faults
$(walks): LDFLAGS += $(wrapped)
$(walks): $(call obj,tests/faults/table.c)
# What a GPU does, without a mount (tests/gpu/run.sh); of the libraries it needs libxxhash only, which may lie beside it.
$(gpu_own): $(call obj,tests/gpu/own.c tests/gpu/own_client.c tests/gpu/own_window.c) $(home_a)
	$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $^ -Wl,-rpath,'$$ORIGIN' -Wl,--as-needed $(PKG_LIBS)
$(gpu_bench): $(BUILD)/%: $(BUILD)/%.o $(so) $(home_a)
	$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $< $(home_a) -L$(BIN) -lgaia -Wl,-rpath,'$$ORIGIN:$$ORIGIN/../../../..' '-Wl,-rpath,$(abspath $(BIN))' -Wl,--as-needed $(PKG_LIBS)
# Kernels with a gaia_view, and the programs that launch them.
$(gpu_paging): $(BUILD)/%: $(BUILD)/%.o $(call obj,tests/gpu/paging_ptx.c) $(so) $(home_a)
	$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $(filter %.o,$^) $(home_a) -L$(BIN) -lgaia -Wl,-rpath,'$$ORIGIN:$$ORIGIN/../../../..' '-Wl,-rpath,$(abspath $(BIN))' -Wl,--as-needed $(PKG_LIBS)
$(BUILD)/tests/gpu/paging_ptx.o: tests/gpu/paging_kernels.ptx
$(benches) $(tools) $(examples): $(BUILD)/%: $(BUILD)/%.o $(so) $(home_a)
	$(CC) $(CFLAGS) $(LDFLAGS) -fopenmp -o $@ $< $(home_a) -L$(BIN) -lgaia -Wl,-rpath,'$$ORIGIN/../../..' '-Wl,-rpath,$(abspath $(BIN))' $(PKG_LIBS)
cuda_example_headers := $(wildcard examples/*.h examples/*/*.h) gpu/gaia.h gpu/gaia_device.cuh gpu/demand.h gpu/demand_device.h gpu/device_memory.h gpu/warp.h
$(cuda_examples): $(BUILD)/%: %.cu $(cuda_example_headers) $(so)
	@mkdir -p $(@D)
	@echo "  CXX $<"
	$(CXX) $(CPPFLAGS) $(filter-out -MMD -MP -Wshadow,$(CXXFLAGS)) -Igpu -fopenmp $(LDFLAGS) -x c++ $< -x none -o $@ -L$(BIN) -lgaia -ldl '-Wl,-rpath,$(abspath $(BIN))'
# Code for the oldest GPU that toolkits of today know, and PTX from which a driver makes that of its own.
NVCC_ARCH ?= sm_75
$(nvcc_examples): $(BUILD)/examples/nvcc/%: examples/cuda/%.cu $(cuda_example_headers) $(so)
	@mkdir -p $(@D)
	@echo "  NVCC $<"
	$(NVCC) -arch=$(NVCC_ARCH) -std=c++17 -O2 -D_GNU_SOURCE -D_FILE_OFFSET_BITS=64 -Igpu -Xcompiler -Wall,-pthread $< -o $@ \
		-L$(BIN) -lgaia $(if $(findstring sgemm,$@),-lcublas) -Xlinker '"-rpath=$(abspath $(BIN))"'

# The device kernels as PTX, which is kept in the tree: nobody else needs a compiler for it. PTX=FILE writes it elsewhere
# (tests/mount/test_device_code.py). No toolkit is needed, nor looked at.
CLANG ?= clang
cuda_flags := -x cuda --cuda-device-only --cuda-gpu-arch=sm_70 --cuda-path=/nonexistent -nocudainc -nocudalib \
	-Xclang -target-feature -Xclang +ptx63 -ffreestanding -std=c++17 -O3 -I. -Wall -Wextra -Werror
ptx: PTX ?= gpu/kernels.ptx
ptx:
	$(CLANG) $(cuda_flags) -S -o $(PTX).tmp gpu/kernels.c
	{ printf '// SPDX-License-Identifier: Apache-2.0\n// Made of kernels.c by: make ptx\n'; cat $(PTX).tmp; } >$(PTX)
	rm $(PTX).tmp

# The same of kernels with a gaia_view, for the tests and timings of demand paging (tests/gpu/paging_kernels.cc).
paging-ptx: PAGING_PTX ?= tests/gpu/paging_kernels.ptx
paging-ptx:
	$(CLANG) $(cuda_flags) -S -o $(PAGING_PTX).tmp tests/gpu/paging_kernels.cc
	{ printf '// SPDX-License-Identifier: Apache-2.0\n// Made of paging_kernels.cc by: make paging-ptx\n'; cat $(PAGING_PTX).tmp; } >$(PAGING_PTX)
	rm $(PAGING_PTX).tmp

# Loaded into a program with LD_PRELOAD.
$(vm): $(BUILD)/%.so: $(BUILD)/%.o
	$(CC) $(CFLAGS) $(LDFLAGS) -shared -o $@ $^
# A driver of NVIDIA's that is none; and an old one.
paging_cpu := $(BUILD)/cuda/paging_kernels.o
$(paging_cpu): tests/gpu/paging_kernels.cc tests/gpu/paging.h $(wildcard gpu/*.h gpu/*.cuh)
	@mkdir -p $(@D)
	$(CXX) $(CPPFLAGS) $(filter-out -MMD -MP -fsanitize=%,$(CXXFLAGS)) -fno-exceptions -fno-rtti -c -o $@ $<
$(standins): $(wildcard tests/cuda/standin*.[ch]) gpu/kernels.c gpu/kernels.h gpu/warp.h gpu/cuda_api.h $(paging_cpu)
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(filter-out -fsanitize=%,$(CFLAGS)) -fvisibility=default $(if $(findstring /old/,$@),-DSTANDIN_OLD) -shared -Wl,-soname,libcuda.so.1 -o $@ $(filter %.c %.o,$^)
$(BUILD)/tests/vm/nosync.o: CFLAGS += -fvisibility=default
$(call obj,$(wildcard examples/*.c examples/*/*.c tests/bench/bench_*.c tests/mount/tool_*.c tests/vm/tool_*.c)): CFLAGS += -fopenmp -Igpu

# CHECK=--unit for the unit tests only; CHECK='--select NAME' for some of the mount tests. NEEDS: what to build for them.
# Python can't load a sanitizer's libgaia (tests/mount/gaia.py): the mount tests have the plain one, of this very tree.
check: $(or $(NEEDS),tests)
	$(if $(SANITIZE),$(MAKE) CC=gcc SANITIZE= DEBUG= BREAK= libgaia.so build/gcc/faults/libgaia.so)
	python3 -B tests/check.py --build $(BUILD) --bin $(BIN) --sanitize '$(SANITIZE)' $(CHECK)

# What takes longer than the gate has time for.
check-long: all
	sh examples/packages.sh run tests long
	$(MAKE) check SANITIZE=address
	$(MAKE) check SANITIZE=thread
	$(MAKE) helgrind
	$(MAKE) fuzz SECONDS=30
	$(MAKE) check
	python3 -B tests/model/run.py --gate
	/usr/bin/python3 -B tests/kills/nodes_run.py --nodes 4 --seconds 30 --rounds 6
	python3 -B tests/vm/rdma.py
	python3 -B tests/vm/rdma.py --device siw
	python3 -B tests/vm/nfs.py
	python3 -B tests/vm/cluster.py
	GAIA_GATE=1 python3 -B tests/vm/suite.py -q || [ $$? -eq 77 ]
	$(MAKE) posix
	sh tests/trixie.sh

# Other programs on a mount (tests/posix); POSIX='--only postgres' for some of them.
posix: all
	python3 -B tests/posix/run.py --bin $(BIN) $(POSIX)

# The build that is checked tells helgrind what it can't see (base/order.h).
ifneq ($(HELGRIND),)
helgrind: tests
	python3 -B tests/helgrind.py $(BUILD)
else
helgrind:
	$(MAKE) helgrind HELGRIND=1
endif

# The rules in Promela, every configuration (tests/model); random histories for so many hours (tests/history).
model:
	python3 -B tests/model/run.py --full
soak: all
	python3 -B tests/history/run.py --hours $(or $(HOURS),1)

# One mount under mixed load for so many hours: its daemon must not grow (tests/soak). OPTIONS=passthrough=on: of the mount.
life: all
	/usr/bin/python3 -B tests/soak/run.py --hours $(or $(HOURS),1) $(if $(OPTIONS),--options '$(OPTIONS)')

# Bugs planted one at a time, each of which the suite must notice (tests/mutants).
mutants: tests
	python3 -B tests/mutants/run.py

# Inputs that somebody else makes, made at random: FUZZ=ranges for one fuzzer, SECONDS=60 for each (tests/fuzz).
fuzz:
	sh tests/fuzz/run.sh '$(FUZZ)' $(or $(SECONDS),60)

bench: benches
	python3 -B tests/bench/bench.py --build $(BUILD) --bin $(BIN)
# Over Soft-RoCE in a virtual machine, against perftest.
bench-rdma: all tools
	python3 -B tests/vm/rdma.py --bench

# mount(8) looks for its helpers in /sbin alone, and the linker's cache does not know of a new library: without a DESTDIR
# both are seen to, where root installs. MOUNTDIR= leaves the first out. Its helpers are that of `mount -t gaiafs`, and that
# of `mount -o remount,...`: the type in the mount table is fuse.gaiafs. Where what is installed lies there itself (PREFIX=),
# links would take its place.
ifneq ($(PREFIX),/usr)
MOUNTDIR ?= /sbin
endif
mount_helpers := mount.gaiafs mount.fuse.gaiafs
installed := sbin/mount.gaiafs sbin/mount.fuse.gaiafs bin/gaiactl lib/libgaia.so.$(VERSION) lib/libgaia.so.$(SOMAJOR) lib/libgaia.so include/gaia.h \
	lib/pkgconfig/gaia.pc share/man/man8/mount.gaiafs.8 share/man/man1/gaiactl.1
device_headers := gaia_device.cuh demand.h demand_device.h device_memory.h warp.h

install: all
	$(if $(filter-out /%,$(PREFIX)),$(error PREFIX=$(PREFIX): a path that begins with / is needed))
	install -d $(DESTDIR)$(PREFIX)/sbin $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/lib/pkgconfig $(DESTDIR)$(PREFIX)/include
	install -m 755 mount.gaiafs $(DESTDIR)$(PREFIX)/sbin/
	ln -sf mount.gaiafs $(DESTDIR)$(PREFIX)/sbin/mount.fuse.gaiafs
	install -m 755 gaiactl $(DESTDIR)$(PREFIX)/bin/
	install -m 755 libgaia.so.$(VERSION) $(DESTDIR)$(PREFIX)/lib/
	ln -sf libgaia.so.$(VERSION) $(DESTDIR)$(PREFIX)/lib/libgaia.so.$(SOMAJOR)
	ln -sf libgaia.so.$(SOMAJOR) $(DESTDIR)$(PREFIX)/lib/libgaia.so
	install -m 644 gpu/gaia.h $(DESTDIR)$(PREFIX)/include/
	install -d $(DESTDIR)$(PREFIX)/share/man/man8 $(DESTDIR)$(PREFIX)/share/man/man1
	install -m 644 docs/mount.gaiafs.8 $(DESTDIR)$(PREFIX)/share/man/man8/
	install -m 644 docs/gaiactl.1 $(DESTDIR)$(PREFIX)/share/man/man1/
	install -d $(DESTDIR)$(PREFIX)/include/gaia
	install -m 644 $(device_headers:%=gpu/%) $(DESTDIR)$(PREFIX)/include/gaia/
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@VERSION@|$(VERSION)|' gpu/gaia.pc.in > $(DESTDIR)$(PREFIX)/lib/pkgconfig/gaia.pc
	chmod 644 $(DESTDIR)$(PREFIX)/lib/pkgconfig/gaia.pc
ifneq ($(MOUNTDIR),)
	if [ $(DESTDIR)$(PREFIX)/sbin -ef $(DESTDIR)$(MOUNTDIR) ]; then :; \
	elif [ -n "$(DESTDIR)" ] || [ -w $(MOUNTDIR) ]; then \
		install -d $(DESTDIR)$(MOUNTDIR) && for name in $(mount_helpers); do \
			ln -sf $(PREFIX)/sbin/mount.gaiafs $(DESTDIR)$(MOUNTDIR)/$$name; done; \
	else echo "mount -t gaiafs needs two links, which root makes:"; for name in $(mount_helpers); do \
		echo "ln -s $(PREFIX)/sbin/mount.gaiafs $(MOUNTDIR)/$$name"; done; fi
endif
ifeq ($(DESTDIR),)
	[ "$$(id -u)" != 0 ] || ldconfig
endif

uninstall:
	rm -f $(installed:%=$(DESTDIR)$(PREFIX)/%) $(device_headers:%=$(DESTDIR)$(PREFIX)/include/gaia/%)
	[ ! -d $(DESTDIR)$(PREFIX)/include/gaia ] || rmdir --ignore-fail-on-non-empty $(DESTDIR)$(PREFIX)/include/gaia
	for name in $(mount_helpers); do link=$(DESTDIR)$(MOUNTDIR)/$$name; \
		[ "$$(readlink $$link)" != $(PREFIX)/sbin/mount.gaiafs ] || rm -f $$link; done
ifeq ($(DESTDIR),)
	[ "$$(id -u)" != 0 ] || ldconfig
endif

all_src := $(wildcard base/*.[ch] consistency/*.[ch] io/*.[ch] gpu/*.[ch] gpu/*.cuh cache/*.[ch] fs/*.[ch] tests/*/*.[ch] tests/*/*.cc examples/*.[ch] examples/*/*.[ch] examples/*/*.cu)
format:
	clang-format -i $(all_src)
lint:
	clang-format --dry-run -Werror $(all_src)
	! grep -nE 'pthread_(mutex|rwlock)_init|PTHREAD_(MUTEX|RWLOCK)_INITIALIZER' $(wildcard io/*.[ch] gpu/*.[ch] cache/*.[ch] fs/*.[ch]) # lock_init()
	clang-tidy --quiet $(filter %.c,$(wildcard base/*.c consistency/*.c io/*.c gpu/*.c cache/*.c fs/*.c)) -- $(CPPFLAGS) -std=gnu11

clean:
	rm -rf build mount.gaiafs gaiactl libgaia.so libgaia.so.*

-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
