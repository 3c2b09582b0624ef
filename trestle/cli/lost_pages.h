#pragma once

namespace trestle::cli {

// From now on a SIGBUS ends the process with a message and exit code 1. It names the mapped file
// whose pages are gone: a program made the file shorter while its weights were in use.
void report_lost_pages();

}  // namespace trestle::cli
