#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "trestle/data/files/volume.h"

// NIfTI files (.nii, .nii.gz), the format of scanners' volumes: NIfTI-1 and NIfTI-2 of either byte
// order are read, NIfTI-1 is written (nifti.nimh.nih.gov, nifti1.h and nifti2.h).
//
// FormatError with the file's name, the reason and the numbers reports a file that is damaged, cut
// short or of an unsupported kind. The size that the header claims is compared with the file's
// bytes before memory is allocated. No call here aborts or prints.
namespace trestle::data {

// Reads a file; gzip is recognized by the first bytes. Values are the stored numbers times
// scl_slope plus scl_inter; a slope of 0 or NaN means no scaling. Whole numbers of 8 to 64 bits and
// real numbers of 32 and 64 bits can be read; colours, complex numbers and the old pairs of .hdr
// and .img are refused. The fourth or the fifth dimension holds the channels. Extensions of the
// header are skipped.
Volume read_nifti(const std::filesystem::path& path);

// The same for bytes in memory; `name` is the file's name in messages.
Volume parse_nifti(std::string_view bytes, std::string_view name);

// Reads the header alone.
VolumeInfo read_nifti_info(const std::filesystem::path& path);

// The stored form of a value.
enum class VoxelType { UInt8, Int16, Float32 };

// Writes the volume in its space, or with a spacing of 1 if it has none; compressed if the name
// ends in .gz. Throws UsageError for values that do not fit the type and for sides above 32,767,
// FileError if the system refuses.
void write_nifti(const std::filesystem::path& path, const Volume& volume, VoxelType type);

// The bytes of that file, not compressed.
std::string nifti_bytes(const Volume& volume, VoxelType type, std::string_view name);

}  // namespace trestle::data
