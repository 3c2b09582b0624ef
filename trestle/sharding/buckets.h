#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "trestle/base/units.h"

namespace trestle::sharding {

// A parameter as the division into buckets sees it.
struct BucketItem {
  Bytes bytes = 0;
  int kind = 0;  // a bucket holds one kind: one dtype on one device
};

// Which parameters share a bucket: the items in this order, each into the open bucket of its kind, which is closed once it
// has `limit` bytes or more; the first one of a kind already at `first_limit`, so that communication begins early (Li et
// al. 2020, as c10d's Reducer divides). Buckets are in the order of their first items. Limits of 0 or less give every
// item a bucket of its own.
std::vector<std::vector<std::size_t>> assign_buckets(const std::vector<BucketItem>& items,
                                                     const std::vector<std::size_t>& order,
                                                     Bytes first_limit, Bytes limit);

}  // namespace trestle::sharding
