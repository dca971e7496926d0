// Columns of a row of sampling params: the fields of `wgpu_backend.ops.sampling.host.sampling_params.SamplingParams`, in order.

const SAMPLING: u32 = 8u;
const TOP_K: u32 = 0u;
const TOP_P: u32 = 1u;
const GAP: u32 = 2u;
const SHARPNESS: u32 = 3u;
const REPEAT: u32 = 4u;
const INVERSE_REPEAT: u32 = 5u;
const PRESENCE: u32 = 6u;
const FREQUENCY: u32 = 7u;
