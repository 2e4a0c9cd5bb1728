/**
 * Types of the server's answers, as in src/protocol/status.rs, for editors and type checkers. Times are Unix seconds,
 * durations are seconds.
 */

/** @typedef {{ count: number, mean: number, p10: number, p50: number, p90: number }} Distribution */
/** @typedef {{ timestamp: number, tag: string, message: string }} LogLine */
/** @typedef {{ status: string, since: number, global_step: number }} Phase */
/** @typedef {{ global_step: number, metrics: Record<string, number> }} StepMetrics */
/** @typedef {{ run: string, steps: StepMetrics[], next: number | null }} History */
/** @typedef {{ episode_uuid: string, client_uuid: string, reward: number }} GroupEpisode */
/** @typedef {{ task_id: string, episodes: GroupEpisode[], running: number, has_signal: boolean }} TaskGroup */

/**
 * @typedef {object} RunningEpisode
 * @property {string} episode_uuid
 * @property {'train' | 'eval'} episode_type
 * @property {string} task_id
 * @property {string} client_uuid
 * @property {number} claimed
 * @property {number} idle
 * @property {number} patience
 * @property {number} llm_calls
 * @property {number} calls_in_flight
 * @property {number} completion_tokens
 */

/**
 * @typedef {object} ClientInfo
 * @property {string} client_uuid
 * @property {number} last_activity
 * @property {number} running
 * @property {number} finished
 * @property {boolean} agreed
 */

/**
 * @typedef {object} SamplingLoad
 * @property {number} running_requests
 * @property {number} waiting_requests
 * @property {number} cache_usage
 * @property {number} prefix_hit_rate
 * @property {number} tokens_per_second
 * @property {number} prompt_tokens_per_second
 * @property {number} episodes_per_second
 * @property {Distribution | null} time_to_first_token
 * @property {Distribution | null} time_per_token
 * @property {number} memory_bytes
 */

/**
 * @typedef {object} Batch
 * @property {string} rule
 * @property {string} unit
 * @property {number} done
 * @property {number} target
 * @property {number} episodes
 * @property {number} episodes_target
 * @property {number} repeats
 * @property {number | null} seconds_left
 * @property {Distribution | null} reward
 */

/**
 * @typedef {object} Experiment
 * @property {string} project
 * @property {string} name
 * @property {string} directory
 * @property {string} model
 * @property {string} device
 * @property {number} parameters
 * @property {number} trainable_parameters
 */

/**
 * @typedef {object} Engine
 * @property {string} status
 * @property {string | null} detail
 * @property {number} since
 * @property {number} global_step
 * @property {number | null} total_steps
 * @property {Phase[]} phases
 * @property {number} restarts
 */

/**
 * @typedef {object} Status
 * @property {{ version: string, started: number, now: number }} server
 * @property {Experiment | null} experiment
 * @property {Engine} engine
 * @property {Batch} batch
 * @property {SamplingLoad | null} sampling
 * @property {ClientInfo[]} clients
 * @property {RunningEpisode[]} running
 * @property {number} running_total
 * @property {number} claimed_total
 * @property {TaskGroup[]} groups
 * @property {Record<string, number>} dropped
 * @property {Record<string, number>} latest_metrics
 * @property {StepMetrics | null} latest_eval
 * @property {LogLine[]} log
 */

/**
 * @typedef {object} Run
 * @property {string} name
 * @property {string | null} model
 * @property {number} last_step
 * @property {number} changed
 * @property {boolean} current
 * @property {number | null} reward_mean
 */

/**
 * @typedef {object} EpisodeSummary
 * @property {string} episode_uuid
 * @property {'train' | 'eval'} episode_type
 * @property {number} global_step
 * @property {string} task_id
 * @property {string} client_uuid
 * @property {number} reward
 * @property {boolean | null} is_success
 * @property {string | null} tag
 * @property {number} llm_calls
 * @property {number} prompt_tokens
 * @property {number} completion_tokens
 * @property {number} seconds
 * @property {number} ended
 * @property {string | null} dropped
 * @property {boolean} has_transcript
 */

/** @typedef {{ runs: Run[] }} Runs */
/** @typedef {{ episodes: EpisodeSummary[], total: number }} Episodes */

/**
 * @typedef {object} TokenRow
 * @property {number[]} ids
 * @property {string[]} texts
 * @property {boolean[]} mask
 * @property {number[]} logprobs
 * @property {number[] | null} advantages
 * @property {boolean} truncated
 */

/**
 * @typedef {object} EpisodeDetail
 * @property {EpisodeSummary} summary
 * @property {boolean} running
 * @property {Record<string, any>} log_metrics
 * @property {{ model: string, tools: any[], messages: any[] }[]} conversations
 * @property {TokenRow[]} rows
 */

export {};
