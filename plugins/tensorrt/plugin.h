// The plugin: its identity, the making of one, and its creators.
#pragma once

#include "attributes.h"

#include <vector>

namespace rmsnorm_export {

constexpr char const* kNamespace = "rmsnorm_export";
constexpr char const* kVersion = "1";

// One norm of a network; null when there is no memory. `name` must outlive it.
nvinfer1::IPluginV3* makePlugin(char const* name, Attributes const& attributes) noexcept;

// One creator for each operator name, made on first use and never destroyed: a registry may outlive
// the static objects of this library.
std::vector<nvinfer1::IPluginCreatorInterface*> const& creators();

}  // namespace rmsnorm_export
