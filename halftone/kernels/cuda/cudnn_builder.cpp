#include "halftone/kernels/cuda/cudnn_builder.h"

#include <algorithm>

namespace halftone::cuda {
namespace {

// Making a handle or a plan may load modules and allocate, which a thread whose stream is being
// recorded may only do in this mode. Neither touches the stream.
class RelaxedCapture {
 public:
  RelaxedCapture() { HT_CUDA(cudaThreadExchangeStreamCaptureMode(&mode_)); }
  ~RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

std::vector<Descriptor> proposals(const Descriptor& graph, cudnnBackendHeurMode_t mode) {
  Descriptor heuristics(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, mode);
  heuristics.finalize();
  int64_t count = 0;
  HT_CUDNN(cudnn().cudnnBackendGetAttribute(heuristics.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                            CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &count, nullptr));
  std::vector<Descriptor> configs;
  std::vector<cudnnBackendDescriptor_t> raw;
  for (int64_t i = 0; i < count; ++i) {
    configs.emplace_back(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    raw.push_back(configs.back().get());
  }
  HT_CUDNN(cudnn().cudnnBackendGetAttribute(heuristics.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                            CUDNN_TYPE_BACKEND_DESCRIPTOR, count, &count,
                                            raw.data()));
  configs.erase(configs.begin() + count, configs.end());
  return configs;
}

std::vector<cudnnBackendNumericalNote_t> notes_of(const Descriptor& config) {
  const Descriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  cudnnBackendDescriptor_t raw = engine.get();
  int64_t count = 0;
  HT_CUDNN(cudnn().cudnnBackendGetAttribute(config.get(), CUDNN_ATTR_ENGINECFG_ENGINE,
                                            CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &raw));
  std::vector<cudnnBackendNumericalNote_t> notes(CUDNN_NUMERICAL_NOTE_TYPE_COUNT);
  HT_CUDNN(cudnn().cudnnBackendGetAttribute(engine.get(), CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                            CUDNN_TYPE_NUMERICAL_NOTE,
                                            CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &count, notes.data()));
  notes.resize(static_cast<size_t>(count));
  return notes;
}

bool allowed(const Descriptor& config, const std::vector<cudnnBackendNumericalNote_t>& forbidden) {
  if (forbidden.empty()) return true;
  const auto notes = notes_of(config);
  return std::none_of(notes.begin(), notes.end(), [&](cudnnBackendNumericalNote_t note) {
    return std::find(forbidden.begin(), forbidden.end(), note) != forbidden.end();
  });
}

}  // namespace

void check(cudnnStatus_t status, const char* call) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  char detail[512] = {};
  cudnn().cudnnGetLastErrorString(detail, sizeof(detail));
  throw Error(ErrorCode::kUnsupported, "cuDNN", "{} failed: {}: {}", call,
              cudnn().cudnnGetErrorString(status), printable(detail, sizeof(detail)));
}

Cudnn::Cudnn(const Context& context) {
  const RelaxedCapture relaxed;
  cudnnHandle_t handle = nullptr;
  HT_CUDNN(cudnn().cudnnCreate(&handle));
  handle_ = {handle, [](cudnnHandle_t h) { cudnn().cudnnDestroy(h); }};
  HT_CUDNN(cudnn().cudnnSetStream(handle, context.stream()));
}

// ---- descriptors --------------------------------------------------------------------------------

Descriptor::Descriptor(cudnnBackendDescriptorType_t type) {
  cudnnBackendDescriptor_t made = nullptr;
  HT_CUDNN(cudnn().cudnnBackendCreateDescriptor(type, &made));
  descriptor_.reset(made);
}

void Descriptor::finalize() { HT_CUDNN(cudnn().cudnnBackendFinalize(get())); }

void Descriptor::set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                     int64_t count, const void* values) {
  HT_CUDNN(cudnn().cudnnBackendSetAttribute(get(), name, type, count, values));
}

void Descriptor::set(cudnnBackendAttributeName_t name, const Descriptor& value) {
  set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, value.get());
}

// ---- plans --------------------------------------------------------------------------------------

Plan::Plan(std::shared_ptr<cudnnContext> handle, Descriptor plan)
    : handle_(std::move(handle)), plan_(std::move(plan)) {
  int64_t count = 0;
  HT_CUDNN(cudnn().cudnnBackendGetAttribute(plan_.get(), CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                            CUDNN_TYPE_INT64, 1, &count, &workspace_bytes_));
}

void Plan::run(std::span<const PlanPointer> pointers, void* workspace) const {
  std::vector<int64_t> ids;
  std::vector<const void*> addresses;
  for (const PlanPointer& p : pointers) {
    ids.push_back(p.id);
    addresses.push_back(p.pointer);
  }
  Descriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, ids);
  pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR,
           static_cast<int64_t>(addresses.size()), addresses.data());
  pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, workspace);
  pack.finalize();
  HT_CUDNN(cudnn().cudnnBackendExecute(handle_.get(), plan_.get(), pack.get()));
}

std::string Plan::text() const {
  int64_t size = 0;
  if (cudnn().cudnnBackendGetAttribute(plan_.get(), CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION,
                                       CUDNN_TYPE_CHAR, 0, &size,
                                       nullptr) != CUDNN_STATUS_SUCCESS) {
    return "";
  }
  std::string text(static_cast<size_t>(size), '\0');
  if (cudnn().cudnnBackendGetAttribute(plan_.get(), CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION,
                                       CUDNN_TYPE_CHAR, size, &size,
                                       text.data()) != CUDNN_STATUS_SUCCESS) {
    return "";
  }
  text.resize(static_cast<size_t>(size));
  return text;
}

Plan Plan::restored(const Cudnn& cudnn, const std::string& text) {
  const RelaxedCapture relaxed;
  const cudnnHandle_t handle = cudnn.handle().get();
  Descriptor plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
  plan.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, handle);
  plan.set(CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
           static_cast<int64_t>(text.size()), text.data());
  plan.finalize();
  return {cudnn.handle(), std::move(plan)};
}

Plan GraphBuilder::build(const Cudnn& cudnn, const Choice& choice) {
  const RelaxedCapture relaxed;
  const cudnnHandle_t handle = cudnn.handle().get();
  std::vector<cudnnBackendDescriptor_t> raw;
  for (const Descriptor& operation : operations_) raw.push_back(operation.get());
  Descriptor graph(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  graph.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, handle);
  graph.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
            static_cast<int64_t>(raw.size()), raw.data());
  graph.finalize();

  std::vector<cudnnBackendHeurMode_t> modes{CUDNN_HEUR_MODE_A};
  if (choice.fallback) modes.push_back(CUDNN_HEUR_MODE_FALLBACK);
  std::string refused = "no engine was proposed";
  for (const cudnnBackendHeurMode_t mode : modes) {
    try {
      for (const Descriptor& config : proposals(graph, mode)) {
        try {
          if (!allowed(config, choice.forbidden)) continue;
          Descriptor plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
          plan.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, handle);
          plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
          plan.finalize();
          Plan made(cudnn.handle(), std::move(plan));
          if (made.workspace_bytes() <= choice.most_workspace) return made;
          refused = fmt::format("a workspace of {} bytes is too much", made.workspace_bytes());
        } catch (const Error& error) {  // this engine cannot: perhaps the next one
          refused = error.message();
        }
      }
    } catch (const Error& error) {
      refused = error.message();
    }
  }
  throw Error(ErrorCode::kUnsupported, "cuDNN", "has no plan for this graph: {}", refused);
}

// ---- tensors ------------------------------------------------------------------------------------

Operand GraphBuilder::tensor(int64_t id, cudnnDataType_t dtype, const Dims& dims,
                             const Dims& strides, const cudnnBackendAttributeName_t* flag) {
  Descriptor t(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  t.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, dtype);
  t.set(CUDNN_ATTR_TENSOR_DIMENSIONS, dims);
  t.set(CUDNN_ATTR_TENSOR_STRIDES, strides);
  t.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, id);
  t.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, int64_t{16});
  if (flag != nullptr) t.set(*flag, CUDNN_TYPE_BOOLEAN, true);
  t.finalize();
  tensors_.push_back(std::move(t));
  return {tensors_.size() - 1, dims};
}

Operand GraphBuilder::real(int64_t id, cudnnDataType_t dtype, const Dims& dims,
                           const Dims& strides) {
  return tensor(id, dtype, dims, strides, nullptr);
}

Operand GraphBuilder::by_value(int64_t id) {
  const auto flag = CUDNN_ATTR_TENSOR_IS_BY_VALUE;
  return tensor(id, CUDNN_DATA_FLOAT, {1, 1, 1, 1}, {1, 1, 1, 1}, &flag);
}

Operand GraphBuilder::temporary(cudnnDataType_t dtype, const Dims& dims, const Dims& strides) {
  const auto flag = CUDNN_ATTR_TENSOR_IS_VIRTUAL;
  return tensor(next_id_++, dtype, dims, strides, &flag);
}

// ---- operations ---------------------------------------------------------------------------------

void GraphBuilder::set(Descriptor& operation, cudnnBackendAttributeName_t name, Operand operand) {
  operation.set(name, tensors_[operand.index]);
}

Descriptor GraphBuilder::pointwise_detail(cudnnPointwiseMode_t mode, cudnnDataType_t math) {
  Descriptor detail(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  detail.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, mode);
  detail.set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, math);
  return detail;
}

void GraphBuilder::pointwise(Descriptor detail, const Ports& ports) {
  detail.finalize();
  Descriptor op(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  op.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, detail);
  set(op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, *ports.x);
  if (ports.b != nullptr) set(op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, *ports.b);
  if (ports.predicate != nullptr) set(op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, *ports.predicate);
  set(op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, *ports.y);
  op.finalize();
  details_.push_back(std::move(detail));
  operations_.push_back(std::move(op));
}

void GraphBuilder::combine_into(cudnnPointwiseMode_t mode, Operand x, Operand b, Operand y) {
  pointwise(pointwise_detail(mode, CUDNN_DATA_FLOAT), {.x = &x, .b = &b, .y = &y});
}

void GraphBuilder::copy_into(Operand x, Operand y) {
  pointwise(pointwise_detail(CUDNN_POINTWISE_IDENTITY, CUDNN_DATA_FLOAT), {.x = &x, .y = &y});
}

Operand GraphBuilder::apply(cudnnPointwiseMode_t mode, Operand x) {
  const Operand y = temporary(CUDNN_DATA_FLOAT, x.dims);
  pointwise(pointwise_detail(mode, CUDNN_DATA_FLOAT), {.x = &x, .y = &y});
  return y;
}

Operand GraphBuilder::combine(cudnnPointwiseMode_t mode, Operand x, Operand b) {
  const Operand y = temporary(CUDNN_DATA_FLOAT, x.dims);
  combine_into(mode, x, b, y);
  return y;
}

Operand GraphBuilder::index(Operand x, int64_t axis) {
  const Operand y = temporary(CUDNN_DATA_INT32, x.dims);
  Descriptor detail = pointwise_detail(CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_INT32);
  detail.set(CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, axis);
  pointwise(std::move(detail), {.x = &x, .y = &y});
  return y;
}

Operand GraphBuilder::logical(cudnnPointwiseMode_t mode, Operand x, Operand b) {
  const Operand y = temporary(CUDNN_DATA_BOOLEAN, x.dims);
  pointwise(pointwise_detail(mode, CUDNN_DATA_BOOLEAN), {.x = &x, .b = &b, .y = &y});
  return y;
}

Operand GraphBuilder::select(Operand predicate, Operand x, Operand otherwise) {
  const Operand y = temporary(CUDNN_DATA_FLOAT, x.dims);
  pointwise(pointwise_detail(CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT),
            {.x = &x, .b = &otherwise, .predicate = &predicate, .y = &y});
  return y;
}

void GraphBuilder::reduce(cudnnReduceTensorOp_t how, Operand x, Operand y) {
  Descriptor detail(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
  detail.set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, how);
  detail.set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
  detail.finalize();
  Descriptor op(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
  op.set(CUDNN_ATTR_OPERATION_REDUCTION_DESC, detail);
  set(op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
  set(op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
  op.finalize();
  details_.push_back(std::move(detail));
  operations_.push_back(std::move(op));
}

void GraphBuilder::reshape(Operand x, Operand y) {
  Descriptor op(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
  set(op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
  set(op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y);
  op.finalize();
  operations_.push_back(std::move(op));
}

void GraphBuilder::matmul(Operand a, Operand b, Operand c, const Overrides& overrides) {
  Descriptor detail(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
  detail.set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
  detail.finalize();
  Descriptor op(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  op.set(CUDNN_ATTR_OPERATION_MATMUL_DESC, detail);
  set(op, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
  set(op, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
  set(op, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c);
  const std::pair<cudnnBackendAttributeName_t, const Operand*> given[] = {
      {CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, overrides.m},
      {CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC, overrides.n},
      {CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC, overrides.k}};
  for (const auto& [name, operand] : given) {
    if (operand != nullptr) set(op, name, *operand);
  }
  op.finalize();
  details_.push_back(std::move(detail));
  operations_.push_back(std::move(op));
}

Descriptor GraphBuilder::convolution_detail(const Convolution& how) {
  const std::array<int64_t, 2> dilations{1, 1};
  Descriptor detail(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
  detail.set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
  detail.set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE,
             CUDNN_CROSS_CORRELATION);
  detail.set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, int64_t{2});
  detail.set(CUDNN_ATTR_CONVOLUTION_DILATIONS, dilations);
  detail.set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, how.strides);
  detail.set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, how.pre_padding);
  detail.set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, how.post_padding);
  detail.finalize();
  return detail;
}

void GraphBuilder::convolution(const Convolution& how, Operand x, Operand weight, Operand y) {
  const float alpha = 1, beta = 0;
  Descriptor detail = convolution_detail(how);
  Descriptor op(CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR);
  op.set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, detail);
  set(op, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, x);
  set(op, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, weight);
  set(op, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, y);
  op.set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, CUDNN_TYPE_FLOAT, alpha);
  op.set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA, CUDNN_TYPE_FLOAT, beta);
  op.finalize();
  details_.push_back(std::move(detail));
  operations_.push_back(std::move(op));
}

void GraphBuilder::convolution_input_grad(const Convolution& how, Operand dy, Operand weight,
                                          Operand dx) {
  const float alpha = 1, beta = 0;
  Descriptor detail = convolution_detail(how);
  Descriptor op(CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR);
  op.set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC, detail);
  set(op, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY, dy);
  set(op, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W, weight);
  set(op, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, dx);
  op.set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA, CUDNN_TYPE_FLOAT, alpha);
  op.set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA, CUDNN_TYPE_FLOAT, beta);
  op.finalize();
  details_.push_back(std::move(detail));
  operations_.push_back(std::move(op));
}

void GraphBuilder::convolution_weight_grad(const Convolution& how, Operand dy, Operand x,
                                           Operand dweight) {
  const float alpha = 1, beta = 0;
  Descriptor detail = convolution_detail(how);
  Descriptor op(CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR);
  op.set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC, detail);
  set(op, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY, dy);
  set(op, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X, x);
  set(op, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW, dweight);
  op.set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA, CUDNN_TYPE_FLOAT, alpha);
  op.set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA, CUDNN_TYPE_FLOAT, beta);
  op.finalize();
  details_.push_back(std::move(detail));
  operations_.push_back(std::move(op));
}

}  // namespace halftone::cuda
