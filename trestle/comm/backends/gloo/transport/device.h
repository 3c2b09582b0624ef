#pragma once

// Handles that libtorch creates and destroys.
namespace gloo::transport {
class Device;
class UnboundBuffer;
}  // namespace gloo::transport
