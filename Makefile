# The front door. Every target first makes sure that the Debian packages it needs are there.
#   make build         the program, at build/halftone (with CUDA where a GPU is present, or CUDA=1)
#   make test          everything that CI checks
#   make demo          pictures from the model that ships, in four precisions on one sheet
#   make demo-train    an adapter that draws blueprints, trained on 2 cores in minutes
#   make install       program, library, model and manual page under PREFIX (/usr/local)
#   make deb           the same as a Debian package under build/
#   make bench         quantize speed beside memcpy
CUDA ?= $(shell [ -e /dev/nvidia0 ] && command -v nvcc >/dev/null && echo 1 || echo 0)
PRESET := $(if $(filter 1,$(CUDA)),cuda,release)
# For the GPU that is here, if there is one; otherwise for those of the preset.
ARCHITECTURES := $(if $(and $(filter 1,$(CUDA)),$(wildcard /dev/nvidia0)),-DCMAKE_CUDA_ARCHITECTURES=native)
JOBS ?= $(shell nproc)

PREFIX ?= /usr/local

.PHONY: build test demo demo-train install deb bench format clean

build:
	@tools/setup build
	cmake --preset $(PRESET) --log-level=WARNING -DHALFTONE_TESTS=OFF -DHALFTONE_BENCH=OFF \
	  -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=8 $(ARCHITECTURES) -B build/program
	cmake --build build/program -j $(JOBS)
	@ln -sfn program/bin/halftone build/halftone
	@echo "built build/halftone"

test:
	@tools/setup test
	@tools/test

demo: build
	@tools/demo

demo-train: build
	@tools/setup demo-train
	@tools/demo_train

install: build
	cmake --install build/program --prefix $(PREFIX)

deb: build
	@tools/setup package
	cd build/program && cpack -B .. -G DEB

bench:
	@tools/setup test
	cmake --preset release --log-level=WARNING
	cmake --build --preset release -j $(JOBS) --target quantize_bench
	build/release/bench/quantize_bench

format:
	@tools/setup test
	@tools/format

clean:
	rm -rf build
