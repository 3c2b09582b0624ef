#pragma once

#include <exception>

#include "trestle/base/error.h"

namespace trestle {

// Another rank failed, exited, or called a different operation. what() names the rank and its
// reason. If several ranks fail, every rank's message has the reason of the first.
class RankError : public Error {
 public:
  using Error::Error;
};

// A rank of spawn() threw an object of a type that the program defines; its message cannot be
// extended. what() has the rank, the type and the object's message. The object is nested:
//
//   try {
//     trestle::spawn(4, train);
//   } catch (const trestle::ForeignError& error) {
//     std::rethrow_if_nested(error);   // throws the object
//   }
class ForeignError : public Error, public std::nested_exception {
 public:
  using Error::Error;
};

}  // namespace trestle
