// The places, types and structures of onnxruntime/api.h against ONNX Runtime's own header. To be
// compiled, with that header's folder among the include folders; there is nothing to run.
#include <onnxruntime_c_api.h>

#include <cstddef>
#include <type_traits>

#include "../../onnxruntime/api.h"

using namespace rmsnorm_export::ort;

// Types that both sides name in their own way, as one: enumerations, the structure, noexcept.
template <class T>
struct Same {
    using type = T;
};
template <class T>
using same = typename Same<T>::type;
template <class T>
struct Same<T*> {
    using type = same<T>*;
};
template <class T>
struct Same<const T> {
    using type = const same<T>;
};
template <>
struct Same<OrtErrorCode> : Same<ErrorCode> {};
template <>
struct Same<ONNXTensorElementDataType> : Same<std::int32_t> {};
template <>
struct Same<OrtCustomOpInputOutputCharacteristic> : Same<Characteristic> {};
template <>
struct Same<OrtMemType> : Same<std::int32_t> {};
template <>
struct Same<OrtCustomOp> : Same<CustomOp> {};
template <class R, class... A>
struct Same<R(A...)> {
    using type = same<R>(same<A>...);
};
template <class R, class... A>
struct Same<R(A...) noexcept> {
    using type = same<R>(same<A>...);
};

#define CHECK(name, place, ...)                                                                 \
    static_assert(offsetof(OrtApi, name) == (place) * sizeof(void*), #name " is elsewhere");    \
    static_assert(std::is_same_v<same<decltype(OrtApi::name)>, decltype(Api::name)>,           \
                  #name " has another type");
RMSNORM_ORT_FUNCTIONS(CHECK)
#if ORT_API_VERSION >= 24
RMSNORM_ORT_FUNCTIONS_1_24(CHECK)
#endif
#undef CHECK

#define CHECK(name)                                                                        \
    static_assert(offsetof(OrtCustomOp, name) == offsetof(CustomOp, name), #name);         \
    static_assert(std::is_same_v<same<decltype(OrtCustomOp::name)>, decltype(CustomOp::name)>, \
                  #name " has another type");
CHECK(version)
CHECK(CreateKernel)
CHECK(GetName)
CHECK(GetExecutionProviderType)
CHECK(GetInputType)
CHECK(GetInputTypeCount)
CHECK(GetOutputType)
CHECK(GetOutputTypeCount)
CHECK(KernelCompute)
CHECK(KernelDestroy)
CHECK(GetInputCharacteristic)
CHECK(GetOutputCharacteristic)
CHECK(GetInputMemoryType)
CHECK(CreateKernelV2)
CHECK(KernelComputeV2)
CHECK(InferOutputShapeFn)
CHECK(GetStartVersion)
CHECK(GetEndVersion)
#undef CHECK

static_assert(offsetof(OrtApiBase, GetApi) == offsetof(ApiBase, GetApi));
static_assert(offsetof(OrtApiBase, GetVersionString) == offsetof(ApiBase, GetVersionString));
static_assert(kF32 == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT && kI8 == ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8);
static_assert(kF8E4M3 == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E4M3FN);
static_assert(kOptional == static_cast<int>(INPUT_OUTPUT_OPTIONAL));
static_assert(kFail == static_cast<int>(ORT_FAIL));
static_assert(kInvalidArgument == static_cast<int>(ORT_INVALID_ARGUMENT));
static_assert(OrtMemTypeDefault == 0);
