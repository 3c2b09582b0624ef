#include "trestle/device/error_context.h"

#include <c10/util/Exception.h>

#include <any>
#include <exception>
#include <filesystem>
#include <functional>
#include <ios>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <system_error>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <variant>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle {

namespace {

// An exception of the standard library with a longer text. It keeps the data of its type, such as
// an error code.
template <class Exception>
class WithContext : public Exception {
 public:
  WithContext(const Exception& error, std::string what)
      : Exception(error), what_(std::move(what)) {}
  const char* what() const noexcept override { return what_.c_str(); }

 private:
  std::string what_;
};

// Throws an object of the one of these types that the error exactly has, if any. An object of
// another type cannot be copied without losing the data of its class. Types that are made of a text
// alone stay exactly that type.
template <class... Exceptions>
void rethrow_if_exactly_one_of(const std::exception& error, const std::string& what) {
  const auto rethrow_if = [&]<class Exception>(const Exception*) {
    if (typeid(error) != typeid(Exception) && typeid(error) != typeid(WithContext<Exception>))
      return;
    if constexpr (std::is_constructible_v<Exception, std::string> &&
                  !std::is_base_of_v<std::system_error, Exception>)  // has an error code too
      throw Exception(what);
    else
      throw WithContext<Exception>(dynamic_cast<const Exception&>(error), what);
  };
  (rethrow_if(static_cast<const Exceptions*>(nullptr)), ...);
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
    rethrow_if_exactly_one_of<
        std::exception, std::runtime_error, std::logic_error, std::invalid_argument,
        std::out_of_range, std::domain_error, std::length_error, std::range_error,
        std::overflow_error, std::underflow_error, std::system_error, std::ios_base::failure,
        std::filesystem::filesystem_error, std::bad_alloc, std::bad_array_new_length, std::bad_cast,
        std::bad_any_cast, std::bad_optional_access, std::bad_variant_access,
        std::bad_function_call, std::bad_weak_ptr>(error, text(error.what(), "\n  ", context));
    throw;
  }
}

}  // namespace trestle
