#include "halftone/graph/catalogue.h"
#include "halftone/graph/ops.h"
#include "halftone/kernels/layouts.h"

namespace halftone {

Value rope(Value x, Value cosine, Value sine, const RopeAttributes& attributes) {
  const bool fits = x.rank() == 4 && x.dim(3) % 2 == 0 &&
                    cosine.shape() == Shape{x.dim(0), x.dim(1), x.dim(3) / 2};
  require(fits && sine.shape() == cosine.shape(), "rope: tables {} and {} do not fit {}",
          cosine.shape(), sine.shape(), x.shape());
  return x.graph().add(Op::kRope, {x, cosine, sine}, attributes, x.type());
}
Gradients rope_gradient(const GradientContext& c) {
  RopeAttributes back = std::get<RopeAttributes>(c.attributes);
  back.inverse = !back.inverse;  // a rotation's transpose is its inverse
  return {rope(c.dy, c.inputs[1], c.inputs[2], back), std::nullopt, std::nullopt};
}

Value attention(Value q, Value k, Value v, std::optional<Value> lengths,
                AttentionAttributes attributes, std::optional<Value> bias) {
  const bool fits = q.rank() == 4 && k.rank() == 4 && k.shape() == v.shape() &&
                    q.dim(0) == k.dim(0) && q.dim(3) == k.dim(3) && k.dim(2) > 0 &&
                    q.dim(2) % k.dim(2) == 0;
  require(fits, "attention: q {}, k {} and v {} do not fit", q.shape(), k.shape(), v.shape());
  std::vector<Value> inputs = {q, k, v};
  if (lengths) {
    require(lengths->shape() == Shape{q.dim(0)} && lengths->dtype() == DType::kI32,
            "attention: lengths {} are not one I32 per row of {}", lengths->shape(), q.shape());
    inputs.push_back(*lengths);
  }
  attributes.biased = bias.has_value();
  if (bias) {
    const Shape shared{q.dim(2), q.dim(1), k.dim(1)};
    const Shape own{q.dim(0), q.dim(2), q.dim(1), k.dim(1)};
    require(bias->shape() == shared || bias->shape() == own,
            "attention: bias {} does not fit scores {}", bias->shape(), own);
    inputs.push_back(*bias);
  }
  return q.graph().add(Op::kAttention, inputs, attributes, q.type());
}
Gradients attention_gradient(const GradientContext& c) {
  std::vector<Value> inputs = {c.dy};
  inputs.insert(inputs.end(), c.inputs.begin(), c.inputs.end());
  std::vector<ValueType> types;
  for (size_t i = 0; i < 3; ++i) types.push_back(c.inputs[i].type());
  const bool biased = std::get<AttentionAttributes>(c.attributes).biased;
  if (biased) types.push_back(c.inputs.back().type());
  const auto grads = c.dy.graph().add(Op::kAttentionGrad, inputs, c.attributes, types);
  Gradients gradients = {grads[0], grads[1], grads[2]};
  gradients.resize(c.inputs.size());
  if (biased) gradients.back() = grads[3];
  return gradients;
}

Value embedding(Value ids, Value table) {
  require(ids.dtype() == DType::kI32 && ids.rank() == 2 && table.rank() == 2,
          "embedding: ids {} and table {} do not fit", ids.shape(), table.shape());
  const DType dtype = table.dtype() == DType::kF16 ? DType::kF32 : table.dtype();
  return ids.graph().add(Op::kEmbedding, {ids, table}, {},
                         {{ids.dim(0), ids.dim(1), table.dim(1)}, dtype, {}});
}
Gradients embedding_gradient(const GradientContext& c) {
  const Value ids = c.inputs[0], table = c.inputs[1];
  return {std::nullopt, ids.graph().add(Op::kEmbeddingGrad, {c.dy, ids}, {}, table.type())};
}

Value gaussian(Value keys, const Shape& shape) {
  const bool fits = keys.dtype() == DType::kI32 && keys.rank() == 2 && keys.dim(1) == 4 &&
                    shape.rank() > 0 && shape[0] == keys.dim(0);
  require(fits, "gaussian: keys {} do not fit {}", keys.shape(), shape);
  return keys.graph().add(Op::kGaussian, {keys}, {}, {shape, DType::kF32, {}});
}

Value dropout(Value x, Value keys, const DropoutAttributes& how) {
  const bool fits = keys.dtype() == DType::kI32 && keys.rank() == 2 && keys.dim(1) == 4 &&
                    x.rank() > 0 && x.dim(0) == keys.dim(0);
  require(fits, "dropout: keys {} do not fit {}", keys.shape(), x.shape());
  require(how.share >= 0 && how.share < 1, "dropout: {} is no share below 1", how.share);
  return x.graph().add(Op::kDropout, {x, keys}, how, x.type());
}
// The same values are zero.
Gradients dropout_gradient(const GradientContext& c) {
  return {dropout(c.dy, c.inputs[1], std::get<DropoutAttributes>(c.attributes)), std::nullopt};
}

Value pad_rows(Value x, Value token, Value lengths) {
  const bool fits = x.rank() == 3 && token.shape() == Shape{x.dim(2)} &&
                    lengths.shape() == Shape{x.dim(0)} && lengths.dtype() == DType::kI32;
  require(fits, "pad_rows: token {} and lengths {} do not fit {}", token.shape(), lengths.shape(),
          x.shape());
  return x.graph().add(Op::kPadRows, {x, token, lengths}, {}, x.type());
}
Gradients pad_rows_gradient(const GradientContext& c) {
  const Value inputs[] = {c.dy, c.inputs[2]};
  const ValueType types[] = {c.inputs[0].type(), c.inputs[1].type()};
  const auto grads = c.dy.graph().add(Op::kPadRowsGrad, inputs, {}, types);
  return {grads[0], grads[1], std::nullopt};
}

Value upsample2x(Value x, bool channels_last) {
  require(x.rank() == 4, "upsample2x: {} is not a batch of pictures", x.shape());
  const PictureLayout p(x.shape(), channels_last);
  const Shape shape = picture_shape(p.batch, p.channels, 2 * p.height, 2 * p.width, channels_last);
  return x.graph().add(Op::kUpsample2x, {x}, UpsampleAttributes{channels_last},
                       {shape, x.dtype(), {}});
}
Gradients upsample2x_gradient(const GradientContext& c) {
  return {c.dy.graph().add(Op::kUpsample2xGrad, {c.dy}, c.attributes, c.inputs[0].type())};
}

}  // namespace halftone
