// A request as a device group runs it.
#pragma once

#include <string>

#include "collective/request.h"
#include "core/topology.h"
#include "transport/device_group.h"

namespace smddp {

// Why no device group takes such a request, on any rank; "" if one may.
std::string CannotBeOnDevice(const Request& request);

// This rank's part in one that CannotBeOnDevice() has nothing against.
DeviceCollective CollectiveOf(const Request& request, const Topology& topo);

}  // namespace smddp
