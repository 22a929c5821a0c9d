# make run    the whole thing at work, on this machine's GPU or the simulated one
# make test   everything that judges the code but for a real cluster; .ci/run calls both
# make test-k8s  a real Kubernetes cluster of one node with gpuslice on it; the first run builds Kubernetes
# make bench  figures of SPECIFICATION.md, as ratios in one run
# make soak SECONDS=600   long randomised runs of what `make test` does briefly; an hour without SECONDS
# make docs   the documentation as a book in $(TARGET)/book, its links checked
# make gpu    the programs for tests/gpu, to be carried to a machine with a card
# make package  a .deb and an .rpm in $(TARGET)/packages, for systems from glibc 2.28 and images from 2.17 on
# make install DESTDIR=… PREFIX=/usr

CARGO  ?= cargo
TARGET := $(or $(CARGO_TARGET_DIR),target)
PREFIX ?= /usr
# What is installed: this build.
BUILD  ?= $(TARGET)/release

.PHONY: build build-debug run test test-k8s bench soak docs gpu package install clean

build: ; @packaging/stage release
build-debug: ; @packaging/stage debug

run: build
	@packaging/need $(or $(filter-out none,$(RUNTIME)),runc)
	@$(TARGET)/release/gpuslice demo

test: ; @tests/run
test-k8s: ; @tests/k8s/run
# All of them, also when one misses its figure.
bench: build
	@status=0; for bench in run nvml init hook node metrics time; do tests/bench/$$bench || status=1; done; exit $$status
soak: ; @tests/soak $(SECONDS)
docs: ; @packaging/mdbook
gpu: ; @tests/gpu/bundle
package:
	@packaging/need rpmbuild
	@packaging/stage portable
	@packaging/package

# Builds nothing: root mostly has no Rust.
install:
	@test -x $(BUILD)/gpusliced || { echo 'nothing is built yet; run make build first' >&2; exit 1; }
	install -D -m 755 -t $(DESTDIR)$(PREFIX)/sbin $(BUILD)/gpusliced
	install -D -m 755 -t $(DESTDIR)$(PREFIX)/bin $(BUILD)/gpuslice
	install -D -m 755 -t $(DESTDIR)$(PREFIX)/libexec/gpuslice $(BUILD)/libexec/gpuslice-hook
	install -D -m 755 -t $(DESTDIR)$(PREFIX)/bin $(BUILD)/libexec/gpuslice-runtime
	install -D -m 755 -t $(DESTDIR)$(PREFIX)/bin $(BUILD)/gpuslice-k8s
	ln -sf gpuslice-k8s $(DESTDIR)$(PREFIX)/bin/kubectl-inspect-cgpu
	ln -sf gpuslice-k8s $(DESTDIR)$(PREFIX)/bin/kubectl-inspect-gpushare
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/lib/gpuslice $(BUILD)/libgpuslice.so \
		$(BUILD)/libgpuslice_mount.so $(BUILD)/libgpuslice_nvml.so
	install -D -m 755 -t $(DESTDIR)$(PREFIX)/libexec/gpuslice $(BUILD)/tenant
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/lib/gpuslice $(BUILD)/libgpuslice_sim_cuda.so \
		$(BUILD)/libgpuslice_sim_nvml.so
	mkdir -p $(DESTDIR)$(PREFIX)/lib/gpuslice/sim
	cp -P $(BUILD)/sim/lib*.so* $(DESTDIR)$(PREFIX)/lib/gpuslice/sim/
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/gpuslice/hooks packaging/hooks/*.json packaging/hooks/README.md
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/gpuslice/prometheus packaging/prometheus/gpuslice.rules.yml
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/gpuslice/grafana packaging/grafana/gpuslice.json
	install -D -m 644 packaging/completions/gpuslice.bash \
		$(DESTDIR)$(PREFIX)/share/bash-completion/completions/gpuslice
	@# Debian's zsh looks in the first directory, others in the second.
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/zsh/vendor-completions packaging/completions/_gpuslice
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/zsh/site-functions packaging/completions/_gpuslice
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d packaging/completions/gpuslice.fish
	packaging/manuals $(BUILD) $(DESTDIR)$(PREFIX)/share/man
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/lib/systemd/system systemd/*.service systemd/*.socket
	sed -i 's|=/usr/|=$(PREFIX)/|' $(DESTDIR)$(PREFIX)/lib/systemd/system/gpuslice*.service
	install -D -m 644 systemd/gpuslice.sysusers $(DESTDIR)$(PREFIX)/lib/sysusers.d/gpuslice.conf
	@# As the packages' scripts do on the machine where they are installed.
	test -n '$(DESTDIR)' || ! command -v systemd-sysusers >/dev/null || \
		systemd-sysusers $(PREFIX)/lib/sysusers.d/gpuslice.conf
	test -n '$(DESTDIR)' || ! test -d /run/systemd/system || systemctl daemon-reload
	@# A configuration that is there is the administrator's.
	test -e $(DESTDIR)/etc/gpuslice/gpusliced.toml || \
		install -D -m 644 packaging/gpusliced.toml $(DESTDIR)/etc/gpuslice/gpusliced.toml

clean: ; $(CARGO) clean
