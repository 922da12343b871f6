// The part of ONNX Runtime's C API that this library uses, declared by hand: no package that people
// install has its header. A function of OrtApi is known by its place in that structure, which never
// changes once it is released; tests/onnxruntime/header.cpp compares places, types and structures
// with the header where there is one.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

struct OrtStatus;
struct OrtValue;
struct OrtKernelInfo;
struct OrtKernelContext;
struct OrtSessionOptions;
struct OrtCustomOpDomain;
struct OrtTensorTypeAndShapeInfo;
struct OrtShapeInferContext;
struct OrtApi;

namespace rmsnorm_export::ort {

// That of ONNX Runtime 1.17, the first with all of it.
constexpr std::uint32_t kApiVersion = 17;

// Element types of tensors, beside those of X (kElementTypes); ONNX numbers them in the same way.
using ElementType = std::int32_t;
constexpr ElementType kUndefined = 0, kF32 = 1, kI8 = 3, kF8E4M3 = 17;
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

// Of ONNX Runtime 1.24, null in an earlier one: type and sizes without a copy, which takes as long as the
// norm of a short row.
#define RMSNORM_ORT_FUNCTIONS_1_24(X)                                                            \
    X(GetTensorElementTypeAndShapeDataReference, 414, OrtStatus*, const OrtValue*, ElementType*, \
      const std::int64_t**, std::size_t*)

// The functions of one ONNX Runtime, read from its OrtApi.
struct Api {
    // The OrtApi that was last found to be of 1.24 or later: it does not say of which it is.
    static inline std::atomic<const OrtApi*> latest{nullptr};

#define X(name, place, result, ...) result (*name)(__VA_ARGS__){nullptr};
    RMSNORM_ORT_FUNCTIONS(X)
    RMSNORM_ORT_FUNCTIONS_1_24(X)
#undef X

    explicit Api(const OrtApi* table) {
        const auto* slots = reinterpret_cast<void* const*>(table);
#define X(name, place, ...) name = reinterpret_cast<decltype(name)>(slots[place]);
        RMSNORM_ORT_FUNCTIONS(X)
        if (table == latest) {
            RMSNORM_ORT_FUNCTIONS_1_24(X)
        }
#undef X
    }
};

struct ApiBase {
    const OrtApi* (*GetApi)(std::uint32_t version);
    const char* (*GetVersionString)();
};

// OrtCustomOp of version 17. What may be null in the original is left so: CreateKernel and KernelCompute
// have a newer form, and InferOutputShapeFn of ONNX Runtime 1.17 to 1.23 crashes on an optional input
// that is absent.
struct CustomOp {
    std::uint32_t version{kApiVersion};
    void* (*CreateKernel)(const CustomOp*, const OrtApi*, const OrtKernelInfo*);
    const char* (*GetName)(const CustomOp*);
    const char* (*GetExecutionProviderType)(const CustomOp*);
    ElementType (*GetInputType)(const CustomOp*, std::size_t);
    std::size_t (*GetInputTypeCount)(const CustomOp*);
    ElementType (*GetOutputType)(const CustomOp*, std::size_t);
    std::size_t (*GetOutputTypeCount)(const CustomOp*);
    void (*KernelCompute)(void*, OrtKernelContext*);
    void (*KernelDestroy)(void*);
    Characteristic (*GetInputCharacteristic)(const CustomOp*, std::size_t);
    Characteristic (*GetOutputCharacteristic)(const CustomOp*, std::size_t);
    std::int32_t (*GetInputMemoryType)(const CustomOp*, std::size_t);
    int (*variadic[4])(const CustomOp*);
    OrtStatus* (*CreateKernelV2)(const CustomOp*, const OrtApi*, const OrtKernelInfo*, void**);
    OrtStatus* (*KernelComputeV2)(void*, OrtKernelContext*);
    OrtStatus* (*InferOutputShapeFn)(const CustomOp*, OrtShapeInferContext*);
    int (*GetStartVersion)(const CustomOp*);
    int (*GetEndVersion)(const CustomOp*);
};
static_assert(sizeof(CustomOp) == 22 * sizeof(void*), "22 fields, as in OrtCustomOp");

}  // namespace rmsnorm_export::ort
