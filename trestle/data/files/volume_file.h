#pragma once

#include <filesystem>
#include <string>

#include "trestle/data/files/image_pairs.h"
#include "trestle/data/files/volume.h"

// Files of volumes by their endings: NIfTI (.nii, .nii.gz; nifti.h) and NumPy's arrays (.npy;
// npy.h) of shape [slices, rows, columns] or [channels, slices, rows, columns].
namespace trestle::data {

// Throws FormatError with the file's name for a damaged file, for an array of another number of
// dimensions, for values that are not finite, and for a file of another kind; FileError if it
// cannot be opened.
Volume read_volume(const std::filesystem::path& path);

// Reads the header alone.
VolumeInfo read_volume_info(const std::filesystem::path& path);

// The name without folder and ending: "case_7" of "a/case_7.nii.gz".
std::string volume_id(const std::filesystem::path& path);

// ".nii.gz", ".nii" or ".npy"; "" for another file.
std::string volume_ending(const std::filesystem::path& path);

// Pairs as by list_pairs(), with volume_id() instead of a picture's name.
PairListing list_volume_pairs(const std::filesystem::path& images_folder,
                              const std::filesystem::path& masks_folder,
                              const std::string& mask_suffix = {});

// Writes class ids 0 to 255 in the form that the ending names, uint8.
void write_label_volume(const std::filesystem::path& path, const Volume& volume);

}  // namespace trestle::data
