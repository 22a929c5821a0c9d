# make run    the whole thing at work, on this machine's GPU or the simulated one
# make test   everything that judges the code; what .ci/run calls
# make bench  figures of SPECIFICATION.md, as ratios in one run
# make soak   long randomised runs of what `make test` does briefly
# make gpu    the programs for tests/gpu, to be carried to a machine with a card
# make install DESTDIR=… PREFIX=/usr

CARGO  ?= cargo
TARGET := $(or $(CARGO_TARGET_DIR),target)
PREFIX ?= /usr

.PHONY: build build-debug run test bench soak gpu install clean

build: ; @packaging/stage release
build-debug: ; @packaging/stage debug

run: build
	@packaging/need $(or $(filter-out none,$(RUNTIME)),runc)
	@$(TARGET)/release/gpuslice demo

test: ; @tests/run
# All of them, also when one misses its figure.
bench: build
	@status=0; for bench in run init hook node time; do tests/bench/$$bench || status=1; done; exit $$status
soak: ; @tests/soak
gpu: ; @tests/gpu/bundle

# Builds nothing: root mostly has no Rust.
install:
	@test -x $(TARGET)/release/gpusliced || { echo 'nothing is built yet; run make build first' >&2; exit 1; }
	install -D -m 755 -t $(DESTDIR)$(PREFIX)/sbin $(TARGET)/release/gpusliced
	install -D -m 755 -t $(DESTDIR)$(PREFIX)/bin $(TARGET)/release/gpuslice
	install -D -m 755 -t $(DESTDIR)$(PREFIX)/libexec/gpuslice $(TARGET)/release/libexec/gpuslice-hook
	install -D -m 755 -t $(DESTDIR)$(PREFIX)/bin $(TARGET)/release/libexec/gpuslice-runtime
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/lib/gpuslice $(TARGET)/release/libgpuslice.so \
		$(TARGET)/release/libgpuslice_replace.so $(TARGET)/release/libgpuslice_nvml.so
	install -D -m 755 -t $(DESTDIR)$(PREFIX)/libexec/gpuslice $(TARGET)/release/tenant
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/lib/gpuslice $(TARGET)/release/libgpuslice_sim_cuda.so \
		$(TARGET)/release/libgpuslice_sim_nvml.so
	mkdir -p $(DESTDIR)$(PREFIX)/lib/gpuslice/sim
	cp -P $(TARGET)/release/sim/lib*.so* $(DESTDIR)$(PREFIX)/lib/gpuslice/sim/
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/gpuslice/hooks packaging/hooks/*.json
	install -D -m 644 packaging/gpusliced.toml $(DESTDIR)/etc/gpuslice/gpusliced.toml

clean: ; $(CARGO) clean
