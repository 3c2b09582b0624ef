#pragma once

// Handles that libtorch makes and destroys.
namespace gloo::transport {
class Device;
class UnboundBuffer;
}  // namespace gloo::transport
