#include "trestle/device/error_context.h"

#include <c10/util/Exception.h>

#include <exception>
#include <stdexcept>
#include <typeinfo>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle {

namespace {

// Only an object of exactly this type can be copied without losing the data of a derived class.
template <class Exception>
void rethrow_if_exactly(const std::exception& error, const std::string& context) {
  if (typeid(error) == typeid(Exception)) throw Exception(text(error.what(), "\n  ", context));
}

}  // namespace

void rethrow_with_context(const std::string& context) {
  try {
    throw;
  } catch (Error& error) {
    error.add_context(context);
    throw;
  } catch (c10::Error& error) {
    error.add_context(context);
    throw;
  } catch (const std::exception& error) {
    rethrow_if_exactly<std::runtime_error>(error, context);
    rethrow_if_exactly<std::logic_error>(error, context);
    rethrow_if_exactly<std::invalid_argument>(error, context);
    rethrow_if_exactly<std::out_of_range>(error, context);
    rethrow_if_exactly<std::domain_error>(error, context);
    throw;
  }
}

}  // namespace trestle
