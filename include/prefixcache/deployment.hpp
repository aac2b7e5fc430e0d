/*
 * What the coordinator has to know of a deployment, and the gate that says whether
 * this cache serves it.
 */
#ifndef PREFIXCACHE_DEPLOYMENT_HPP
#define PREFIXCACHE_DEPLOYMENT_HPP

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "tensor.hpp"
#include "types.hpp"

namespace prefixcache {

/// What a decoder layer keeps between steps. A sliding window counts as attention.
enum class LayerKind : uint32_t { kStateless = 0, kAttention = 1, kSlidingWindow = 2, kRecurrent = 3 };
/// Speculative decoding; kOther is not served.
enum class SpeculativeMode : uint32_t { kNone = 0, kEagle = 1, kOther = 2 };

/// K and V of one attention layer, per token.
struct KVLayerConfig {
    int32_t kvHeads = 0;
    int32_t headDim = 0;
};

/// State of one recurrent layer, in elements: heads x headDim x stateSize, and convDim x convKernel.
struct RecurrentConfig {
    int32_t heads = 0;
    int32_t headDim = 0;
    int32_t stateSize = 0;
    DataType stateType = DataType::kFloat;
    int32_t convDim = 0;
    int32_t convKernel = 0;
    DataType convType = DataType::kHalf;
};

/// One network, as its engine states it.
struct ModelConfig {
    int32_t maxBatchSize = 0;
    int32_t capacityTokens = 0;  ///< of one sequence
    int64_t numPages = 0;        ///< of the KV pool
    DataType kvType = DataType::kHalf;
    std::vector<LayerKind> layers;        ///< decoder layers in order
    std::vector<KVLayerConfig> kvLayers;  ///< one for each attention layer
    std::vector<int32_t> kvDonors;        ///< empty, or for each attention layer whose KV it reads; -1: its own
    int32_t numRecurrentLayers = 0;
    RecurrentConfig recurrent;  ///< of every recurrent layer
    int32_t hiddenSize = 0;
    int32_t baseHiddenSize = 0;  ///< draft: width of the hidden states that feed it
    bool isSpecBase = false;     ///< built to be verified by speculation
    bool isEagle = false;        ///< draft: an EAGLE draft
};

/// Configuration of speculative decoding.
struct SpecConfig {
    int32_t verifySize = 0;                   ///< tokens that the base model verifies in a round
    int32_t draftingStep = 0;                 ///< draft rounds
    int32_t draftingTopK = 0;                 ///< candidates in each
    std::vector<int32_t> conditioningLayers;  ///< decoder layers whose hidden states feed the draft
};

/// The coordinator reads the two batch sizes and the speculation; the gate reads all.
struct DeploymentConfig {
    ModelConfig base;
    std::optional<ModelConfig> draft;
    std::optional<SpecConfig> spec;
    SpeculativeMode speculativeMode = SpeculativeMode::kNone;
    bool hasDiffusionBackbone = false;
    bool hasBidirectionalVision = false;
};

namespace detail {

/// A pc_model with the arrays that it points to.
struct ModelArguments {
    pc_model model{};
    std::vector<uint32_t> layers;
    std::vector<pc_attention_layer> attention;
    std::vector<pc_recurrent_layer> recurrent;

    explicit ModelArguments(ModelConfig const& in) {
        for (auto const kind : in.layers) {
            layers.push_back(static_cast<uint32_t>(kind));
        }
        for (auto const& layer : in.kvLayers) {
            pc_attention_layer out{};
            out.kv_heads = layer.kvHeads;
            out.head_dim = layer.headDim;
            out.type = static_cast<uint32_t>(in.kvType);
            attention.push_back(out);
        }
        pc_recurrent_layer shape{};
        shape.heads = in.recurrent.heads;
        shape.head_dim = in.recurrent.headDim;
        shape.state_size = in.recurrent.stateSize;
        shape.state_type = static_cast<uint32_t>(in.recurrent.stateType);
        shape.conv_dim = in.recurrent.convDim;
        shape.conv_kernel = in.recurrent.convKernel;
        shape.conv_type = static_cast<uint32_t>(in.recurrent.convType);
        if (in.numRecurrentLayers < 0) {
            throw std::runtime_error("prefixcache: numRecurrentLayers is " + std::to_string(in.numRecurrentLayers) +
                                     ", expected >= 0");
        }
        recurrent.assign(static_cast<size_t>(in.numRecurrentLayers), shape);

        model.max_batch = in.maxBatchSize;
        model.capacity_tokens = in.capacityTokens;
        model.num_pages = in.numPages;
        model.layers = layers.data();
        model.num_layers = layers.size();
        model.attention = attention.data();
        model.num_attention = attention.size();
        model.kv_donors = in.kvDonors.data();
        model.num_kv_donors = in.kvDonors.size();
        model.recurrent = recurrent.data();
        model.num_recurrent = recurrent.size();
        model.hidden_size = in.hiddenSize;
        model.base_hidden_size = in.baseHiddenSize;
        model.spec_base = in.isSpecBase ? 1 : 0;
        model.eagle = in.isEagle ? 1 : 0;
    }
};

}  // namespace detail

/// The gate in front of the cache: conservative, what is not known to be right is refused.
/// @throws std::runtime_error that says why the deployment is not served
inline ContextCacheDeploymentKind validateContextCacheDeployment(DeploymentConfig const& deployment,
                                                                 int32_t tokensPerPage = 128,
                                                                 std::string const& libraryPath = {}) {
    pc_api const& api = Library::get(libraryPath);
    detail::ModelArguments const base(deployment.base);
    std::optional<detail::ModelArguments> draft;
    auto in = detail::sized<pc_deployment>();
    in.diffusion_backbone = deployment.hasDiffusionBackbone ? 1 : 0;
    in.vision_bidirectional = deployment.hasBidirectionalVision ? 1 : 0;
    in.speculative = static_cast<uint32_t>(deployment.speculativeMode);
    in.tokens_per_page = tokensPerPage;
    in.base = &base.model;
    if (deployment.draft) {
        draft.emplace(*deployment.draft);
        in.draft = &draft->model;
    }
    if (deployment.spec) {
        in.verify_size = deployment.spec->verifySize;
        in.drafting_step = deployment.spec->draftingStep;
        in.drafting_top_k = deployment.spec->draftingTopK;
        static int32_t const none = 0;  // an array of no layers is still one that is given
        auto const& layers = deployment.spec->conditioningLayers;
        in.conditioning_layers = layers.empty() ? &none : layers.data();
        in.num_conditioning_layers = deployment.spec->conditioningLayers.size();
    }
    uint32_t kind = 0;
    detail::check(api, api.context_validate_deployment(&in, &kind));
    return static_cast<ContextCacheDeploymentKind>(kind);
}

}  // namespace prefixcache

#endif  // PREFIXCACHE_DEPLOYMENT_HPP
