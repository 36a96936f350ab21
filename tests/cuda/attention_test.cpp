// Attention and its gradients through cuDNN, against the reference in double.
#include <gtest/gtest.h>

#include <cstring>

#include "halftone/kernels/cuda/cudnn_attention.h"
#include "tests/support/backend.h"
#include "tests/support/run_graph.h"

namespace halftone {
namespace {

using test::bytes_of;
using test::floats;
using test::int_tensor;
using test::random_tensor;
using test::relative_error;

// BF16 probabilities and outputs: 2.4e-3 was measured against double, the reference rounds too.
constexpr double kTolerance = 6e-3;

enum class Bias { kNone, kShared, kOfItems };

struct Problem {
  const char* name;
  int64_t batch, queries, keys, heads, groups, dim;
  std::vector<int32_t> lengths;  // none: every key is seen
  bool packed = false;           // q, k and v lie in one array, [B, T, q | k | v]
  Bias bias = Bias::kNone;
};

void PrintTo(const Problem& p, std::ostream* out) { *out << p.name; }

std::shared_ptr<Storage> on_device(std::span<const std::byte> bytes) {
  DeviceContext& device = *test::tested_stream().device;
  auto memory = device.allocate(static_cast<int64_t>(bytes.size()), "a test's arrays");
  device.upload(memory->address(), bytes);
  return memory;
}

// An output, full of NaN until something is written.
std::shared_ptr<Storage> poisoned(const Shape& shape) {
  const std::vector<std::byte> nan(static_cast<size_t>(shape.numel()) * 2, std::byte{0xFF});
  return on_device(nan);
}

Tensor from_device(const Storage& memory, const Shape& shape) {
  Tensor t = Tensor::empty(DType::kBF16, shape);
  test::tested_stream().device->download(t.mutable_bytes(), memory.address());
  return t;
}

// Concatenates along the channels of a token: [B, T, sum of H * D].
Tensor packed(const std::vector<Tensor>& parts) {
  const int64_t tokens = parts[0].shape()[0] * parts[0].shape()[1];
  int64_t columns = 0;
  for (const Tensor& part : parts) columns += part.numel() / tokens;
  Tensor all = Tensor::empty(DType::kBF16, {tokens, columns});
  std::byte* to = all.mutable_bytes().data();
  for (int64_t t = 0; t < tokens; ++t) {
    for (const Tensor& part : parts) {
      const int64_t bytes = part.byte_size() / tokens;
      std::memcpy(to, part.bytes().data() + t * bytes, static_cast<size_t>(bytes));
      to += bytes;
    }
  }
  return all;
}

ConstView view(const Tensor& t) { return {t.bytes().data(), t.dtype(), t.shape()}; }
View mutable_view(Tensor& t) { return {t.mutable_bytes().data(), t.dtype(), t.shape()}; }

class Launch {
 public:
  template <class Args>
  Launch(const Kernel<Args>& kernel, const Args& args) {
    EXPECT_TRUE(kernel.supports(args));
    const int64_t bytes = kernel.workspace(args, stream);
    memory_ = stream.device->allocate(bytes, "a workspace");
    stream.workspace = memory_->address();
    stream.workspace_bytes = bytes;
    run = [&kernel, args, this] { kernel.launch(args, stream); };
    run();
    stream.device->synchronize();
  }

  Stream stream = test::tested_stream();
  std::function<void()> run;

 private:
  std::shared_ptr<Storage> memory_;
};

class CudnnAttention : public testing::TestWithParam<Problem> {
 protected:
  CudnnAttention() {
    const Problem& p = GetParam();
    q_shape_ = {p.batch, p.queries, p.heads, p.dim};
    k_shape_ = {p.batch, p.keys, p.groups, p.dim};
    q_ = random_tensor(q_shape_, 1, DType::kBF16);
    k_ = random_tensor(k_shape_, 2, DType::kBF16);
    v_ = random_tensor(k_shape_, 3, DType::kBF16);
    dy_ = random_tensor(q_shape_, 4, DType::kBF16);
    how_.scale = 1.3f / std::sqrt(static_cast<float>(p.dim));
    if (!p.lengths.empty()) lengths_ = int_tensor(p.lengths, {p.batch});
    if (p.bias == Bias::kNone) return;
    how_.biased = true;
    bias_ = random_tensor(p.bias == Bias::kShared ? Shape{p.heads, p.queries, p.keys}
                                                  : Shape{p.batch, p.heads, p.queries, p.keys},
                          5, p.bias == Bias::kShared ? DType::kBF16 : DType::kF32);
  }

  // Fills q, k, v and lengths of arguments for the GPU.
  template <class Args>
  void give(Args& args) {
    const Problem& p = GetParam();
    args.how = how_;
    if (p.packed) {
      const int64_t stride = (p.heads + 2 * p.groups) * p.dim;
      keep(packed({q_, k_, v_}));
      std::byte* start = kept_.back()->address();
      args.q = {start, DType::kBF16, q_shape_};
      args.k = {start + p.heads * p.dim * 2, DType::kBF16, k_shape_};
      args.v = {start + (p.heads + p.groups) * p.dim * 2, DType::kBF16, k_shape_};
      args.q.token_stride = args.k.token_stride = args.v.token_stride = stride;
    } else {
      args.q = keep(q_);
      args.k = keep(k_);
      args.v = keep(v_);
    }
    if (lengths_.defined()) args.lengths = keep(lengths_);
    if (bias_.defined()) args.bias = keep(bias_);
  }
  ConstView keep(const Tensor& t) {
    kept_.push_back(on_device(t.bytes()));
    return {kept_.back()->address(), t.dtype(), t.shape()};
  }
  View output(const Shape& shape) {
    kept_.push_back(poisoned(shape));
    return {kept_.back()->address(), DType::kBF16, shape};
  }
  const Storage& last() const { return *kept_.back(); }

  template <class Args>
  void give_reference(Args& args) const {
    args.how = how_;
    args.q = view(q_);
    args.k = view(k_);
    args.v = view(v_);
    if (lengths_.defined()) args.lengths = view(lengths_);
    if (bias_.defined()) args.bias = view(bias_);
  }

  void expect_cudnn(const Launch& launch) const {
    const auto refused = cuda::context_of(launch.stream).part<cuda::AttentionPlans>().fallbacks();
    EXPECT_TRUE(refused.empty()) << refused.front();
  }

  Shape q_shape_, k_shape_;
  Tensor q_, k_, v_, dy_, lengths_, bias_;
  AttentionAttributes how_;
  std::vector<std::shared_ptr<Storage>> kept_;
};

const std::vector<Problem> kProblems = {
    {"dim64", 2, 128, 128, 4, 4, 64, {}},
    {"dim72", 1, 96, 160, 3, 3, 72, {}},
    {"dim96", 2, 160, 64, 2, 2, 96, {}},
    {"dim128", 1, 300, 300, 2, 2, 128, {}},
    {"dim256", 1, 64, 96, 2, 2, 256, {}},
    {"odd", 2, 131, 77, 2, 2, 64, {}},
    {"shared_keys", 2, 130, 96, 6, 2, 64, {}},
    {"lengths", 3, 128, 128, 2, 2, 128, {128, 1, 70}},
    {"odd_lengths", 2, 133, 99, 2, 2, 64, {98, 13}},
    {"shared_keys_lengths", 2, 64, 192, 4, 2, 128, {192, 65}},
    {"packed", 2, 96, 96, 4, 4, 64, {}, true},
    {"packed_shared_keys_lengths", 2, 101, 101, 4, 2, 128, {40, 101}, true},
    {"bias", 2, 128, 128, 4, 4, 64, {}, false, Bias::kShared},
    {"odd_bias_lengths", 2, 133, 99, 4, 2, 64, {98, 13}, false, Bias::kShared},
    {"bias_of_items", 2, 96, 128, 2, 2, 128, {}, false, Bias::kOfItems},
};
INSTANTIATE_TEST_SUITE_P(, CudnnAttention, testing::ValuesIn(kProblems),
                         [](const auto& tested) { return std::string(tested.param.name); });

TEST_P(CudnnAttention, Forward) {
  AttentionArgs args;
  give(args);
  args.y = output(q_shape_);
  ASSERT_TRUE(cuda::cudnn_takes(args));
  const Launch launch(test::tested_kernels().attention, args);
  expect_cudnn(launch);
  const Tensor y = from_device(last(), q_shape_);

  AttentionArgs reference;
  give_reference(reference);
  Tensor expected = Tensor::empty(DType::kBF16, q_shape_);
  reference.y = mutable_view(expected);
  cpu_scalar_kernels().attention.launch(reference, {});
  EXPECT_LE(relative_error(floats(y), floats(expected)), kTolerance);

  // Recorded launches do the same.
  DeviceContext& device = *launch.stream.device;
  const std::vector<std::byte> nan(y.bytes().size(), std::byte{0xFF});
  const auto recording = device.record(launch.run);
  device.upload(last().address(), nan);
  recording->replay();
  EXPECT_EQ(bytes_of(from_device(last(), q_shape_)), bytes_of(y));
}

TEST_P(CudnnAttention, Gradients) {
  AttentionGradArgs args;
  give(args);
  args.dy = keep(dy_);
  const Shape shapes[] = {q_shape_, k_shape_, k_shape_};
  std::shared_ptr<Storage> outputs[3];
  View* views[] = {&args.dq, &args.dk, &args.dv};
  for (int i = 0; i < 3; ++i) {
    *views[i] = output(shapes[i]);
    outputs[i] = kept_.back();
  }
  // Wider heads are left to the plain kernel, which is held to the same.
  ASSERT_EQ(cuda::cudnn_takes(args), GetParam().dim <= 128);
  const Launch launch(test::tested_kernels().attention_grad, args);
  expect_cudnn(launch);

  AttentionGradArgs reference;
  give_reference(reference);
  reference.dy = view(dy_);
  Tensor expected[3];
  View* expected_views[] = {&reference.dq, &reference.dk, &reference.dv};
  for (int i = 0; i < 3; ++i) {
    expected[i] = Tensor::empty(DType::kBF16, shapes[i]);
    *expected_views[i] = mutable_view(expected[i]);
  }
  cpu_scalar_kernels().attention_grad.launch(reference, {});

  Tensor actual[3];
  const char* names[] = {"dq", "dk", "dv"};
  for (int i = 0; i < 3; ++i) {
    actual[i] = from_device(*outputs[i], shapes[i]);
    EXPECT_LE(relative_error(floats(actual[i]), floats(expected[i])), 2 * kTolerance) << names[i];
  }
  // Keys that are not seen have no gradient at all.
  for (int i = 1; i < 3 && lengths_.defined(); ++i) {
    const auto values = floats(actual[i]);
    const int64_t token = GetParam().groups * GetParam().dim;
    for (int64_t j = 0; j < actual[i].numel(); ++j) {
      const int64_t key = j / token % GetParam().keys, b = j / (token * GetParam().keys);
      if (key < GetParam().lengths[b]) continue;
      ASSERT_EQ(values[j], 0) << names[i] << " at " << j;
    }
  }
  // Problems of this size take the gradient that is the same in every run.
  launch.run();
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(bytes_of(from_device(*outputs[i], shapes[i])), bytes_of(actual[i])) << names[i];
  }
}

TEST(CudnnPlans, MayBeMadeWhileLaunchesAreRecorded) {
  const Shape shape{1, 48, 1, 64};  // of no other test here
  const Tensor x = random_tensor(shape, 5, DType::kBF16);
  const auto device_x = on_device(x.bytes()), device_y = poisoned(shape);
  AttentionArgs args;
  args.how.scale = 0.1f;
  args.q = args.k = args.v = {device_x->address(), DType::kBF16, shape};
  args.y = {device_y->address(), DType::kBF16, shape};
  Stream stream = test::tested_stream();
  const auto memory = stream.device->allocate(64 << 20, "a workspace");
  stream.workspace = memory->address();
  stream.workspace_bytes = 64 << 20;
  const auto recording =
      stream.device->record([&] { test::tested_kernels().attention.launch(args, stream); });
  recording->replay();
  const Tensor y = from_device(*device_y, shape);

  args.q = args.k = args.v = view(x);
  Tensor expected = Tensor::empty(DType::kBF16, shape);
  args.y = mutable_view(expected);
  cpu_scalar_kernels().attention.launch(args, {});
  EXPECT_LE(relative_error(floats(y), floats(expected)), kTolerance);
}

TEST(CudnnTakes, OnlyWhatItWasRunWith) {
  const auto args = [](DType dtype, const Shape& q, const Shape& k) {
    AttentionArgs a;
    a.q = {&a, dtype, q};
    a.k = a.v = {&a, dtype, k};
    a.y = {nullptr, dtype, q};
    return a;
  };
  const Shape good{2, 64, 4, 64};
  EXPECT_TRUE(cuda::cudnn_takes(args(DType::kBF16, good, good)));
  EXPECT_FALSE(cuda::cudnn_takes(args(DType::kF32, good, good)));
  EXPECT_FALSE(cuda::cudnn_takes(args(DType::kBF16, {2, 64, 4, 20}, {2, 64, 4, 20})));
  EXPECT_FALSE(cuda::cudnn_takes(args(DType::kBF16, good, {2, 7, 4, 64})));
  EXPECT_FALSE(cuda::cudnn_takes(args(DType::kBF16, {0, 64, 4, 64}, {0, 64, 4, 64})));
  AttentionArgs causal = args(DType::kBF16, good, good);
  causal.how.causal = true;
  EXPECT_FALSE(cuda::cudnn_takes(causal));
}

}  // namespace
}  // namespace halftone
