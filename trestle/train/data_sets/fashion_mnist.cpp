#include "trestle/train/data_sets/data_sets.h"

namespace trestle::train {

namespace {

std::vector<std::string> clothes_names(const recipe::Recipe&) {
  return {"T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
          "Sandal",      "Shirt",   "Sneaker",  "Bag",   "Ankle boot"};
}

}  // namespace

// Zalando's Fashion-MNIST (Xiao, Rasul, Vollgraf 2017): pictures of clothes in MNIST's files.
DataSet fashion_mnist_set() {
  DataSet set = mnist_set();
  set.name = "fashion_mnist";
  set.summary = "pictures of clothes in MNIST's format; a Debian package has it";
  set.usual_place = "/usr/share/datasets/fashion-mnist";
  set.class_names = clothes_names;
  set.synthesize = nullptr;
  set.stand_in = nullptr;
  return set;
}

}  // namespace trestle::train
