#pragma once

// Command lines of Megatron-LM's own examples, for tests.
namespace trestle::megatron {

// examples/pretrain_gpt.sh, "345M parameter model", with its variables as they are.
inline constexpr const char* flags_of_345m = R"(
    --num-layers 24 \
    --hidden-size 1024 \
    --num-attention-heads 16 \
    --seq-length 1024 \
    --max-position-embeddings 1024 \
    --micro-batch-size 4 \
    --global-batch-size 8 \
    --lr 0.00015 \
    --train-iters 500000 \
    --lr-decay-iters 320000 \
    --lr-decay-style cosine \
    --min-lr 1.0e-5 \
    --weight-decay 1e-2 \
    --lr-warmup-fraction .01 \
    --clip-grad 1.0 \
    --fp16
    --data-path $DATA_PATH \
    --vocab-file $VOCAB_FILE \
    --merge-file $MERGE_FILE \
    --data-impl mmap \
    --split 949,50,1
    --log-interval 100 \
    --save-interval 10000 \
    --eval-interval 1000 \
    --eval-iters 10
    --save $CHECKPOINT_PATH \
    --load $CHECKPOINT_PATH
)";

// Those that every model needs.
inline constexpr const char* smallest_flags =
    "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 32 "
    "--max-position-embeddings 32 --micro-batch-size 2 --lr 1e-3 --train-iters 100 "
    "--hidden-dropout 0 --attention-dropout 0 ";

// A Llama with four heads of keys and values.
inline constexpr const char* llama_flags =
    "--num-layers 8 --hidden-size 512 --num-attention-heads 8 --group-query-attention "
    "--num-query-groups 4 --seq-length 128 --max-position-embeddings 256 --swiglu "
    "--normalization RMSNorm --disable-bias-linear --position-embedding-type rope "
    "--rotary-base 500000 --untie-embeddings-and-output-weights --hidden-dropout 0 "
    "--attention-dropout 0 --norm-epsilon 1e-6 --init-method-std 0.01 --bf16 "
    "--tokenizer-type HuggingFaceTokenizer --tokenizer-model my/tokenizer.json "
    "--micro-batch-size 1 --lr 3e-4 --train-iters 1000 ";

}  // namespace trestle::megatron
