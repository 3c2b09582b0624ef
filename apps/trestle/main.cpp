#include "trestle/run.h"

int main(int argc, char** argv) { return trestle::run(argc, argv); }
