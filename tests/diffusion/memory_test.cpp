// Peak memory is what the plan says: within 5% of what an allocator hook sees, and of what the
// process grows by, files aside. A process of its own, because the hook is global.
#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <new>

#include "halftone/engine/generate.h"
#include "halftone/io/json.h"
#include "tests/support/load_pipeline.h"
#include "tests/support/sanitizers.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_zimage.h"

namespace {

std::atomic<int64_t> in_use{0}, most_in_use{0};

void* counted(void* block) {
  if (block == nullptr) throw std::bad_alloc();
  const int64_t now = in_use += static_cast<int64_t>(::malloc_usable_size(block));
  int64_t most = most_in_use;
  while (now > most && !most_in_use.compare_exchange_weak(most, now)) {
  }
  return block;
}
void* allocate(size_t size, size_t alignment) {
  const size_t rounded = (std::max<size_t>(size, 1) + alignment - 1) / alignment * alignment;
  return counted(std::aligned_alloc(alignment, rounded));
}
void release(void* block) {
  if (block == nullptr) return;
  in_use -= static_cast<int64_t>(::malloc_usable_size(block));
  std::free(block);
}

}  // namespace

void* operator new(size_t size) { return allocate(size, alignof(std::max_align_t)); }
void* operator new[](size_t size) { return allocate(size, alignof(std::max_align_t)); }
void* operator new(size_t size, std::align_val_t a) {
  return allocate(size, static_cast<size_t>(a));
}
void* operator new(size_t size, std::align_val_t a, const std::nothrow_t&) noexcept {
  return allocate(size, static_cast<size_t>(a));
}
void operator delete(void* block) noexcept { release(block); }
void operator delete[](void* block) noexcept { release(block); }
void operator delete(void* block, size_t) noexcept { release(block); }
void operator delete[](void* block, size_t) noexcept { release(block); }
void operator delete(void* block, std::align_val_t) noexcept { release(block); }
void operator delete(void* block, size_t, std::align_val_t) noexcept { release(block); }
void operator delete(void* block, std::align_val_t, const std::nothrow_t&) noexcept {
  release(block);
}

namespace halftone {
namespace {

// Resident memory that belongs to no file.
int64_t anonymous_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssAnon:")) return std::stoll(line.substr(8)) * 1024;
  }
  return 0;
}

struct Point {
  const char* precision;
  int threads;
  int64_t width, height, batch;
  bool compile = true;
  bool turns = false;  // encoders, converted to fp8, and what makes pictures are never both there
};

class Memory : public testing::Test {
 protected:
  void SetUp() override {
    const std::filesystem::path data = HALFTONE_TEST_DATA;
    // Large enough that what is not planned (the tokenizer, generated code of convolutions) is far
    // below 5%. Few groups, so that a group is a large part of a value.
    const auto description = test::one_layer_zimage({{"mid_block_add_attention", false}});
    test::write_zimage_folder(dir_ / "model", description, data / "tokenizer" / "tokenizer.json");
  }

  std::unique_ptr<Pipeline> load(const Point& point) const {
    LoadOptions options;
    const Format format = *find_format(point.precision);
    options.activations = format == formats::fp32 ? DType::kF32 : DType::kBF16;
    if (format.quantized()) options.format = format;
    options.compile = point.compile;
    options.kernels = &cpu_kernels();
    options.stream = {point.threads};
    if (point.turns) options.text_format = formats::fp8;
    options.bare = point.turns;
    auto pipeline = test::load_pipeline(dir_ / "model", options);
    if (point.turns) pipeline->take_turns();
    return pipeline;
  }

  void expect_planned_peak(const Point& point) const {
    GenerateRequest request;
    request.prompt = "a";
    request.width = request.height = 16;
    request.steps = 1;
    const auto silent = [](const Progress&) {};
    // Threads and oneDNN's generated code come once per process.
    generate(*load(point), request, silent);
    request.width = point.width;
    request.height = point.height;
    request.count = request.batch = point.batch;

    ::malloc_trim(0);  // what earlier rounds freed is not to be taken for memory that is in use
    const int64_t heap_before = in_use;
    [[maybe_unused]] const int64_t resident_before = anonymous_bytes();
    const auto model = load(point);
    const ModelMemory planned = plan_generate(*model, request);
    EXPECT_GT(planned.peak(), 48 << 20);
    most_in_use = in_use.load();
    int64_t resident = 0;
    // Pictures are handed over as they are finished, and none is kept.
    generate(
        *model, request, [&](const Progress&) { resident = std::max(resident, anonymous_bytes()); },
        [](const GeneratedPicture&) {});
    resident = std::max(resident, anonymous_bytes());
    const auto measured = static_cast<double>(most_in_use - heap_before);
    const auto expected = static_cast<double>(planned.peak());
    EXPECT_NEAR(measured, expected, 0.05 * expected);
#if !defined(HALFTONE_SANITIZED)
    EXPECT_NEAR(static_cast<double>(resident - resident_before), expected, 0.05 * expected);
#endif
  }

  test::TempDir dir_;
};

TEST_F(Memory, PeakIsWhatWasPlanned) {
  HT_SKIP_WHERE_SANITIZED();
  const Point points[] = {
      {"fp32", 1, 256, 320, 1},
      {"fp32", 2, 320, 256, 1},
      {"fp32", 8, 320, 320, 1},
      {"bf16", 1, 320, 256, 1},
      {"bf16", 8, 256, 320, 1},
      {"bf16", 8, 320, 256, 1, false},
      {"nvfp4", 2, 320, 320, 1},
      {"fp32", 2, 256, 256, 2},
      {"fp8", 8, 320, 320, 3},
      {"mxfp8", 3, 256, 256, 2, false},
      {"nvfp4", 2, 320, 256, 1, true, true},
  };
  for (const Point& point : points) {
    if (test::kSanitized && point.batch == 1) continue;  // three are enough to watch
    SCOPED_TRACE(fmt::format("{}, {} threads, {}x{}, batch {}{}", point.precision, point.threads,
                             point.width, point.height, point.batch,
                             point.compile ? "" : ", not compiled"));
    expect_planned_peak(point);
  }
}

}  // namespace
}  // namespace halftone
