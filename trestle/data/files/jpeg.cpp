#include <csetjmp>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>

#include <jpeglib.h>

#include <jerror.h>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/data/files/codecs.h"

// libjpeg reports errors by a call that must not return. Throwing through C frames is not portable,
// so errors longjmp to a small function without objects that have a destructor. Memory is owned by
// its caller.
namespace trestle::data::codecs {
namespace {

struct ErrorManager {
  jpeg_error_mgr base;  // first member: libjpeg passes a pointer to it back
  std::jmp_buf back;
  char message[JMSG_LENGTH_MAX];
};

[[noreturn]] void on_jpeg_error(j_common_ptr info) {
  auto* manager = reinterpret_cast<ErrorManager*>(info->err);
  info->err->format_message(info, manager->message);
  std::longjmp(manager->back, 1);
}

// libjpeg continues after damaged data and fills in grey. A silently wrong picture is worse than
// none, so every warning about the picture's data is an error. Warnings about other segments are
// not.
void on_message(j_common_ptr info, int level) {
  if (level >= 0) return;
  switch (info->err->msg_code) {
    case JWRN_EXTRANEOUS_DATA:
    case JWRN_ADOBE_XFORM:
    case JWRN_JFIF_MAJOR:
    case JWRN_TOO_MUCH_DATA:
      return;
    default:
      on_jpeg_error(info);
  }
}

// A few bytes can demand thousands of passes over a large picture; no camera or program writes that
// many.
void on_progress(j_common_ptr info) {
  constexpr int max_scans = 500;
  if (!info->is_decompressor) return;
  if (reinterpret_cast<j_decompress_ptr>(info)->input_scan_number <= max_scans) return;
  auto* manager = reinterpret_cast<ErrorManager*>(info->err);
  std::snprintf(manager->message, sizeof manager->message, "more than %d scans", max_scans);
  std::longjmp(manager->back, 1);
}

void install(ErrorManager& manager) {
  jpeg_std_error(&manager.base);
  manager.base.error_exit = on_jpeg_error;
  manager.base.emit_message = on_message;
  manager.base.output_message = [](j_common_ptr) {};
  manager.message[0] = '\0';
}

struct Decoder {
  jpeg_decompress_struct info = {};
  ErrorManager errors = {};
  jpeg_progress_mgr progress = {};

  Decoder() {
    install(errors);
    info.err = &errors.base;
    progress.progress_monitor = on_progress;
  }
  ~Decoder() { jpeg_destroy_decompress(&info); }
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;
};

// Reads the header. Returns false on an error; errors.message has the reason.
bool read_jpeg_header(Decoder& decoder, const Source& source) {
  if (setjmp(decoder.errors.back)) return false;
  jpeg_create_decompress(&decoder.info);
  jpeg_mem_src(&decoder.info, reinterpret_cast<const unsigned char*>(source.bytes.data()),
               source.bytes.size());
  jpeg_save_markers(&decoder.info, JPEG_APP0 + 1, 0xffff);  // Exif
  jpeg_read_header(&decoder.info, TRUE);
  return true;
}

// Decodes all rows into `pixels`. Returns false on an error; errors.message has the reason.
bool read_jpeg_rows(Decoder& decoder, unsigned char* pixels, std::size_t row_bytes) {
  if (setjmp(decoder.errors.back)) return false;
  decoder.info.dct_method = JDCT_ISLOW;
  decoder.info.do_fancy_upsampling = TRUE;
  decoder.info.progress = &decoder.progress;
  jpeg_start_decompress(&decoder.info);
  while (decoder.info.output_scanline < decoder.info.output_height) {
    JSAMPROW row = pixels + decoder.info.output_scanline * row_bytes;
    jpeg_read_scanlines(&decoder.info, &row, 1);
  }
  // No jpeg_finish_decompress: data after the last row do not belong to the picture.
  return true;
}

void open_jpeg(Decoder& decoder, const Source& source) {
  if (!read_jpeg_header(decoder, source)) throw_unreadable(source, "JPEG", decoder.errors.message);
}

struct Encoder {
  jpeg_compress_struct info = {};
  ErrorManager errors = {};
  unsigned char* bytes = nullptr;
  unsigned long size = 0;

  Encoder() {
    install(errors);
    info.err = &errors.base;
  }
  ~Encoder() {
    jpeg_destroy_compress(&info);
    std::free(bytes);
  }
  Encoder(const Encoder&) = delete;
  Encoder& operator=(const Encoder&) = delete;
};

bool write_rows(Encoder& encoder, const Image& image, int quality) {
  if (setjmp(encoder.errors.back)) return false;
  jpeg_compress_struct& info = encoder.info;
  jpeg_create_compress(&info);
  jpeg_mem_dest(&info, &encoder.bytes, &encoder.size);
  info.image_width = static_cast<JDIMENSION>(image.width);
  info.image_height = static_cast<JDIMENSION>(image.height);
  info.input_components = image.channels;
  info.in_color_space = image.channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, quality, TRUE);
  jpeg_start_compress(&info, TRUE);
  const std::size_t row_bytes = static_cast<std::size_t>(image.width) * image.channels;
  while (info.next_scanline < info.image_height) {
    auto* row = const_cast<JSAMPROW>(image.pixels.data() + info.next_scanline * row_bytes);
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  return true;
}

}  // namespace

Image decode_jpeg(const Source& source, const ReadImageOptions& options) {
  auto decoder = std::make_unique<Decoder>();
  open_jpeg(*decoder, source);
  jpeg_decompress_struct& info = decoder->info;
  check_claimed_size(source, info.image_width, info.image_height, options.max_pixels);
  switch (info.num_components) {
    case 1:
      info.out_color_space = JCS_GRAYSCALE;
      break;
    case 3:
      info.out_color_space = JCS_RGB;
      break;
    default:
      throw FormatError(text("the picture has ", info.num_components, " colour components"),
                        {.file = std::string(source.name),
                         .hint = "Convert it to RGB or grey (CMYK is not supported)."});
  }
  Image image = Image::blank(static_cast<int>(info.image_width),
                             static_cast<int>(info.image_height), info.num_components);
  if (!read_jpeg_rows(*decoder, image.pixels.data(),
                      static_cast<std::size_t>(image.width) * image.channels)) {
    throw_unreadable(source, "JPEG", decoder->errors.message);
  }
  return image;
}

ImageSize jpeg_size(const Source& source) {
  auto decoder = std::make_unique<Decoder>();
  open_jpeg(*decoder, source);
  check_claimed_size(source, decoder->info.image_width, decoder->info.image_height,
                     ReadImageOptions{}.max_pixels);
  return {static_cast<int>(decoder->info.image_width),
          static_cast<int>(decoder->info.image_height)};
}

std::string jpeg_exif(const Source& source) {
  auto decoder = std::make_unique<Decoder>();
  open_jpeg(*decoder, source);
  constexpr std::string_view head("Exif\0\0", 6);
  for (auto* marker = decoder->info.marker_list; marker != nullptr; marker = marker->next) {
    const std::string_view data(reinterpret_cast<const char*>(marker->data), marker->data_length);
    if (data.starts_with(head)) return std::string(data.substr(head.size()));
  }
  return "";
}

std::string encode_jpeg(const Image& image, int quality, std::string_view name) {
  auto encoder = std::make_unique<Encoder>();
  if (!write_rows(*encoder, image, quality)) {
    throw Error(text("cannot write JPEG: ", encoder->errors.message), {.file = std::string(name)});
  }
  return {reinterpret_cast<const char*>(encoder->bytes), encoder->size};
}

}  // namespace trestle::data::codecs
