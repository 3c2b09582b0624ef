#include "trestle/comm/fail_on_error.h"

#include <c10/util/Exception.h>

namespace trestle::comm {

std::string error_message(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const c10::Error& caught) {
    return caught.what_without_backtrace();
  } catch (const std::exception& caught) {
    return caught.what();
  } catch (...) {
    return "an exception of unknown type";
  }
}

}  // namespace trestle::comm
