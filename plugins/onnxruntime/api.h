// The part of ONNX Runtime's C API that this library uses, declared by hand: no package that people
// install has its header. A function of OrtApi is known by its place in that structure, which never
// changes once it is released; tests/onnxruntime/header.cpp compares places, types and structures
// with the header where there is one.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#ifndef ORT_API_VERSION  // the header is not there
struct OrtStatus;
struct OrtValue;
struct OrtKernelInfo;
struct OrtKernelContext;
struct OrtSessionOptions;
struct OrtCustomOpDomain;
struct OrtTensorTypeAndShapeInfo;
struct OrtShapeInferContext;
struct OrtApi;
struct OrtCustomOp;
#endif

namespace rmsnorm_export::ort {

// That of ONNX Runtime 1.17, the first with all of it.
constexpr std::uint32_t kApiVersion = 17;

// The element types of tensors; ONNX numbers them in the same way.
enum ElementType : std::int32_t {
    kUndefined = 0,
    kF32 = 1,
    kI8 = 3,
    kF16 = 10,
    kF64 = 11,
    kBF16 = 16,
    kF8E4M3 = 17
};
enum Characteristic : std::int32_t { kRequired = 0, kOptional = 1 };
enum ErrorCode : std::int32_t { kFail = 1, kInvalidArgument = 2 };

struct CustomOp;

// X(name, place, returned type, arguments)
#define RMSNORM_ORT_FUNCTIONS(X)                                                                   \
    X(CreateStatus, 0, OrtStatus*, ErrorCode, const char*)                                         \
    X(CreateCustomOpDomain, 26, OrtStatus*, const char*, OrtCustomOpDomain**)                      \
    X(CustomOpDomain_Add, 27, OrtStatus*, OrtCustomOpDomain*, const CustomOp*)                     \
    X(AddCustomOpDomain, 28, OrtStatus*, OrtSessionOptions*, OrtCustomOpDomain*)                   \
    X(GetTensorMutableData, 51, OrtStatus*, OrtValue*, void**)                                     \
    X(GetTensorElementType, 60, OrtStatus*, const OrtTensorTypeAndShapeInfo*, ElementType*)        \
    X(GetDimensionsCount, 61, OrtStatus*, const OrtTensorTypeAndShapeInfo*, std::size_t*)          \
    X(GetDimensions, 62, OrtStatus*, const OrtTensorTypeAndShapeInfo*, std::int64_t*, std::size_t) \
    X(GetTensorTypeAndShape, 65, OrtStatus*, const OrtValue*, OrtTensorTypeAndShapeInfo**)         \
    X(KernelInfoGetAttribute_float, 85, OrtStatus*, const OrtKernelInfo*, const char*, float*)     \
    X(KernelInfoGetAttribute_int64, 86, OrtStatus*, const OrtKernelInfo*, const char*,             \
      std::int64_t*)                                                                               \
    X(KernelInfoGetAttribute_string, 87, OrtStatus*, const OrtKernelInfo*, const char*, char*,     \
      std::size_t*)                                                                                \
    X(KernelContext_GetInputCount, 88, OrtStatus*, const OrtKernelContext*, std::size_t*)          \
    X(KernelContext_GetOutputCount, 89, OrtStatus*, const OrtKernelContext*, std::size_t*)         \
    X(KernelContext_GetInput, 90, OrtStatus*, const OrtKernelContext*, std::size_t,                \
      const OrtValue**)                                                                            \
    X(KernelContext_GetOutput, 91, OrtStatus*, OrtKernelContext*, std::size_t,                     \
      const std::int64_t*, std::size_t, OrtValue**)                                                \
    X(ReleaseStatus, 93, void, OrtStatus*)                                                         \
    X(ReleaseTensorTypeAndShapeInfo, 99, void, OrtTensorTypeAndShapeInfo*)                         \
    X(KernelContext_GetGPUComputeStream, 193, OrtStatus*, const OrtKernelContext*, void**)         \
    X(KernelInfo_GetNodeName, 244, OrtStatus*, const OrtKernelInfo*, char*, std::size_t*)          \
    X(KernelContext_ParallelFor, 274, OrtStatus*, const OrtKernelContext*,                         \
      void (*)(void*, std::size_t), std::size_t, std::size_t, void*)

// Those of ONNX Runtime 1.24, null in an earlier one.
#define RMSNORM_ORT_FUNCTIONS_1_24(X)                                                             \
    X(GetTensorElementTypeAndShapeDataReference, 414, OrtStatus*, const OrtValue*, ElementType*, \
      const std::int64_t**, std::size_t*)

// The functions of one ONNX Runtime, read from its OrtApi.
struct Api {
    // The OrtApi that was last found to be of 1.24 or later: which one it is it does not say.
    static inline std::atomic<const OrtApi*> latest{nullptr};

#define X(name, place, result, ...)           \
    using name##Function = result(__VA_ARGS__); \
    name##Function* name{nullptr};
    RMSNORM_ORT_FUNCTIONS(X)
    RMSNORM_ORT_FUNCTIONS_1_24(X)
#undef X

    explicit Api(const OrtApi* table) {
        const auto* slots = reinterpret_cast<void* const*>(table);
#define X(name, place, ...) name = reinterpret_cast<name##Function*>(slots[place]);
        RMSNORM_ORT_FUNCTIONS(X)
        if (table == latest) {
            RMSNORM_ORT_FUNCTIONS_1_24(X)
        }
#undef X
    }
};

// All that every version of ONNX Runtime has in its place.
inline Api::CreateStatusFunction* create_status(const OrtApi* table) {
    return reinterpret_cast<Api::CreateStatusFunction*>(*reinterpret_cast<void* const*>(table));
}

struct ApiBase {
    const OrtApi* (*GetApi)(std::uint32_t version);
    const char* (*GetVersionString)();
};

// OrtCustomOp of version 17. Where a function may be null in the original it is left so.
struct CustomOp {
    std::uint32_t version{kApiVersion};
    void* (*CreateKernel)(const CustomOp*, const OrtApi*, const OrtKernelInfo*){nullptr};
    const char* (*GetName)(const CustomOp*){nullptr};
    const char* (*GetExecutionProviderType)(const CustomOp*){nullptr};
    ElementType (*GetInputType)(const CustomOp*, std::size_t){nullptr};
    std::size_t (*GetInputTypeCount)(const CustomOp*){nullptr};
    ElementType (*GetOutputType)(const CustomOp*, std::size_t){nullptr};
    std::size_t (*GetOutputTypeCount)(const CustomOp*){nullptr};
    void (*KernelCompute)(void*, OrtKernelContext*){nullptr};
    void (*KernelDestroy)(void*){nullptr};
    Characteristic (*GetInputCharacteristic)(const CustomOp*, std::size_t){nullptr};
    Characteristic (*GetOutputCharacteristic)(const CustomOp*, std::size_t){nullptr};
    std::int32_t (*GetInputMemoryType)(const CustomOp*, std::size_t){nullptr};
    int (*GetVariadicInputMinArity)(const CustomOp*){nullptr};
    int (*GetVariadicInputHomogeneity)(const CustomOp*){nullptr};
    int (*GetVariadicOutputMinArity)(const CustomOp*){nullptr};
    int (*GetVariadicOutputHomogeneity)(const CustomOp*){nullptr};
    OrtStatus* (*CreateKernelV2)(const CustomOp*, const OrtApi*, const OrtKernelInfo*,
                                 void**){nullptr};
    OrtStatus* (*KernelComputeV2)(void*, OrtKernelContext*){nullptr};
    // Left null: that of ONNX Runtime 1.17 to 1.23 crashes on an optional input that is absent.
    OrtStatus* (*InferOutputShapeFn)(const CustomOp*, OrtShapeInferContext*){nullptr};
    int (*GetStartVersion)(const CustomOp*){nullptr};
    int (*GetEndVersion)(const CustomOp*){nullptr};
};
static_assert(sizeof(CustomOp) == 22 * sizeof(void*), "22 fields, as in OrtCustomOp");

}  // namespace rmsnorm_export::ort
