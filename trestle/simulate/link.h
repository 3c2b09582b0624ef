#pragma once

#include <string>
#include <string_view>

namespace trestle::simulate {

// The port that connects a host to all other hosts. It is full duplex: what leaves the host and
// what enters it do not share its bandwidth.
struct Link {
  double bandwidth = 0;  // bytes per second in each direction; 0 = unlimited
  double latency = 0;    // seconds from one host to another
  // The share of the bandwidth that each direction has while both are full: acknowledgements travel
  // against their data.
  double both_ways = 1;

  double seconds(double bytes) const { return bandwidth > 0 ? bytes / bandwidth : 0; }
  friend bool operator==(const Link&, const Link&) = default;
};

// "100Mbit,5ms", "1Gbit,50us" or "12.5MB/s": the bandwidth, and the time that a message takes from
// one host to another beside its bytes (0 if left out). Throws UsageError on any other text.
Link parse_link(std::string_view text);

// A link as a network's data sheet gives it has less for a message's bytes: this one has the
// bandwidth that Ethernet, IP and TCP leave of it.
Link without_headers(Link link);

// "100 Mbit/s and 5 ms each way".
std::string to_string(const Link& link);

}  // namespace trestle::simulate
