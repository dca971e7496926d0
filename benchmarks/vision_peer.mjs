// Encode pictures with llama.cpp's Vulkan build, one for each path on standard input.
//
//     npm install @fugood/llama.node @fugood/node-llama-linux-x64-vulkan    (in this or a parent folder)
//     node vision_peer.mjs MODEL.gguf MMPROJ.gguf
//
// Each answer is a line "encoded MILLISECONDS". Environment: VK_ICD_FILENAMES names the driver,
// GGML_VK_VISIBLE_DEVICES=0 shows lavapipe, PEER_VARIANT=default takes llama.cpp's CPU build.
import { createInterface } from 'node:readline'
import llama from '@fugood/llama.node'

const [model, mmproj] = process.argv.slice(2)
const variant = process.env.PEER_VARIANT ?? 'vulkan'
const context = await llama.loadModel({
  model,
  n_ctx: 4096,
  // The text model's pass is not measured, and is small.
  n_gpu_layers: 0,
  n_threads: 1,
  lib_variant: variant,
})
await context.initMultimodal({ path: mmproj, use_gpu: variant !== 'default' })
for await (const line of createInterface({ input: process.stdin })) {
  const start = Date.now()
  await context.completion({ prompt: '<__media__>a', media_paths: [line], n_predict: 1 })
  console.log(`encoded ${Date.now() - start}`)
}
process.exit(0)
