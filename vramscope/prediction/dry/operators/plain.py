"""Operators that take their outputs on CUDA and nothing else.

Each was run on many inputs, of several shapes and types, by torch's genuine allocator.
"""

from vramscope.prediction.dry.operators import Row

_SOURCE = "every input that was tried on the genuine allocator"

_NAMES = """
__and__ __iand__ __ior__ __ixor__ __or__ __xor__ bitwise_xor bitwise_xor_ logical_xor logical_xor_
_adaptive_avg_pool2d _adaptive_avg_pool3d _adaptive_avg_pool3d_backward
_amp_foreach_non_finite_check_and_unscale_ _amp_update_scale_ _efficientzerotensor _foreach_abs
_foreach_add _foreach_add_ _foreach_addcdiv_ _foreach_addcmul _foreach_addcmul_ _foreach_clamp_max_
_foreach_clamp_min_ _foreach_copy_ _foreach_div_ _foreach_lerp_ _foreach_maximum_ _foreach_mul
_foreach_mul_ _foreach_neg _foreach_neg_ _foreach_pow _foreach_reciprocal_ _foreach_sign_ _foreach_sqrt
_foreach_sqrt_ _foreach_sub _foreach_sub_ _fused_adam_ _fused_adamw_ _fused_sgd_ _pdist_forward
_prelu_kernel _prelu_kernel_backward _reshape_alias _to_copy _unsafe_view _upsample_nearest_exact1d
_upsample_nearest_exact1d_backward _weight_norm_interface _weight_norm_interface_backward abs abs_ acos
adaptive_max_pool2d adaptive_max_pool3d
adaptive_max_pool3d_backward add add_ addcdiv addcdiv_ addcmul addcmul_ addmm_ alias alias_copy arange
as_strided as_strided_scatter asin atan atan2 avg_pool2d bernoulli bernoulli_ bitwise_and bitwise_and_
bitwise_left_shift bitwise_not bitwise_or bitwise_or_ bitwise_right_shift bucketize cat cauchy_ ceil_
channel_shuffle clamp clamp_ clamp_max clamp_min clamp_min_ clone complex constant_pad_nd copy_ cos cosh
cummax deg2rad detach diag_embed diagonal diagonal_backward diagonal_scatter digamma div div_ elu
elu_backward empty empty_like eq erfc exp exp2 exp_ expand expand_copy expm1 exponential_ eye fill fill_
flip floor fmax fmin frac frexp full full_like gather ge gelu gelu_backward geometric_ glu glu_backward
grid_sampler_2d grid_sampler_2d_backward gt hardsigmoid hardsigmoid_backward hardswish hardswish_backward
hardtanh hardtanh_backward heaviside hypot igammac index_add index_add_ index_copy index_fill
index_select is_same_size isnan isneginf le leaky_relu leaky_relu_backward lerp lerp_ lgamma lift_fresh
linalg_cross linear linspace log log10 log1p log2 log_ log_normal_ log_sigmoid_backward
log_sigmoid_forward logaddexp logaddexp2 logical_and logical_and_ logical_not logical_not_ logical_or
logical_or_ logit logspace lt masked_fill masked_fill_ max_pool2d_with_indices max_pool3d_with_indices
max_pool3d_with_indices_backward max_unpool2d max_unpool3d maximum minimum mul mul_ nan_to_num nansum ne
neg neg_ new_empty new_empty_strided new_full new_ones new_zeros normal_ ones ones_like permute
pixel_shuffle pixel_unshuffle polar polygamma pow_ rad2deg rand rand_like randint randn randn_like
reciprocal reciprocal_ reflection_pad1d reflection_pad2d relu relu_ remainder repeat replication_pad1d
rot90 round rsqrt rsqrt_ rsub scalar_tensor scaled_dot_product_attention scatter scatter_ scatter_add
scatter_add_ searchsorted select select_backward select_scatter set_ sgn sigmoid sigmoid_backward sign
signbit silu silu_backward sin sinc sinh slice slice_backward softplus softplus_backward softshrink
softshrink_backward split split_with_sizes sqrt sqrt_ squeeze squeeze_ squeeze_copy stack sub sub_ t
t_copy take tan tanh tanh_backward threshold_backward transpose transpose_copy tril tril_indices triu
triu_indices unbind unbind_copy unfold uniform_ unsafe_split unsqueeze unsqueeze_ unsqueeze_copy
upsample_bicubic2d upsample_bilinear2d upsample_nearest1d upsample_nearest2d view view_as_complex
view_as_real where xlogy zero_ zeros zeros_like empty_strided
floor_divide poisson binomial _standard_gamma
"""

ROWS = {f"aten::{name}": Row(_SOURCE) for name in _NAMES.split()}
