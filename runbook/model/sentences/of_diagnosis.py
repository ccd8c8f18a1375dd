"""What the rules of `diagnosis/` say: reasons, what speaks against them, and what would settle it."""

from __future__ import annotations

from runbook.model.sentences import Wording


class Say(Wording):
    ACCOUNTING_AND_KERNEL_LOG = "Slurm's accounting (State, MaxRSS, ReqMem) and the kernel log of the node"
    ACCOUNTING_OF_EVERY_STEP = "Slurm's accounting of every step"
    ACCOUNTING_OF_MEMORY = "Slurm's accounting (State, MaxRSS, ReqMem)"
    ACCOUNTING_SAYS_OUT_OF_MEMORY = "Slurm's accounting says OUT_OF_MEMORY for {steps:, }"
    AFTER_COMPLETED_STEPS = (
        "It happened after {done} completed steps (last: {last_step}): the working set grew, by longer "
        "sequences, late optimizer state or something kept alive."
    )
    AFTER_STEPS_AND_GREW = "It happened after {done} completed steps (last: {last_step}). {grew}"
    ALLOCATED_BY_LIVE_TENSORS = (
        "{allocated_bytes} of {capacity_bytes} are allocated by live tensors; what is unallocated may be of no "
        "use to this request."
    )
    ALLOCATED_MEMORY = "Allocated memory"
    ALLOCATOR_RETRIES = "The log counts retries of the allocator, a sign of pressure from fragments."
    ALLOCATOR_SETTINGS_IN_JOB_ENVIRONMENT = "the allocator settings in the job's environment"
    AND_MORE = " and {count} more"
    ANOTHER_GPU_RAN_OUT = "GPU {failing} ran out of memory, and no fault of it was found."
    ANOTHER_JOB_LOOKS_THE_SAME = "Another job's process would hold the card in the same way."
    ANOTHER_NODE_FAILING_LOOKS_THE_SAME = "The failure of another node, whose log is not here, ends in the same signal."
    ANY_SMALL_REQUEST = "{tried} stands for any small request (R-06): full is as likely as fragmented."
    ASKED_FOR = " It asked for {tried}."
    ASKED_FOR_HOST_MEMORY = "It asked for {tried_bytes} of host memory."
    A_MIG_SLICE = " (a MIG slice)"
    BEFORE_ANY_STEP = (
        "It happened before any step was completed, as far as the logs show: a static size (batch, sequence, "
        "model, sharding)."
    )
    BLOCKS_AWAITED_BY_ANOTHER_STREAM = (
        "So do blocks freed on one stream and still awaited by another, where the same request may succeed when "
        "tried again (R-16)."
    )
    BUFFERS_OR_ANOTHER_POOL = (
        "It is NCCL's buffers, library workspaces or another pool; the caching allocator cannot give it "
        "back."
    )
    BUT_ANOTHER_FAILURE_WAS_FIRST = (
        "{told}, but the first failure of the log is another: a killed helper, or what followed."
    )
    BUT_FAILED_IN_STEP = "{said}, but it failed in step {failed:,}."
    CANCELLED_AFTER_A_FAILURE_LOOKS_THE_SAME = (
        "A step is cancelled in the same words after a failure that the logs do not show."
    )
    CARD_REFUSES_IN_THE_SAME_WORDS = "The same words are printed where the card refuses memory outside the allocator."
    CARD_WAS_FULL_TOO = "The card itself had only {free} free, so the limit is not the only cause."
    CONTAINER_OR_SLICE_LOOKS_THE_SAME = (
        "Another container, MPS or a slice of the card that this process may not use looks the same."
    )
    CONTEXTS_ON_ONE_GPU = (
        "{count} other processes ({pids}) hold {total} together, each less than {small_bytes}: every local rank "
        "made its context on the same GPU ({remedy})."
    )
    CUDAMALLOCASYNC_PRINTS_NO_UNUSED = "backend:cudaMallocAsync does not print what its pool holds unused."
    CURRICULUM_LOOKS_THE_SAME = "Sequences that grow by a curriculum look the same."
    DEVICE_RAN_OUT_WITHOUT_FIGURES = (
        "{signature} says that the device ran out of memory, but not how much was free or reserved.{tried}"
    )
    DRIVER_LISTS_PROCESSES = (
        "The driver's list of processes in the log names process {pids} with {held} on the card, before the "
        "job's first step or beside its failure."
    )
    ENDED_AND_NOTHING_TELLS_WHY = "The logs show processes that ended, and no line that any signature knows tells why."
    ENGINES_PID_NOT_IN_THE_LOG = "The pid of the engine is not in the log: it may be a stranger's process."
    ENGINES_POOL = "It is an inference engine's pool in the same process; the caching allocator cannot give it back."
    ENGINE_HOLDS = "Process{es} {pids} hold{s} {held} of the card, {why}; {short} were missing."
    ENGINE_RAN_OUT_AT_CAPTURE = "The engine ran out of memory while it captured CUDA graphs: {excerpt}"
    ENGINE_SHARE_AND_LARGEST_BATCH = "the engine's share and its largest batch for graphs"
    ENGINE_STARTS = "It failed while the engine starts: lower the engine's share."
    ENGINE_TAKES_BACK_OR_GENERATES = (
        "It failed while the engine takes its memory back or generates: lower the engine's "
        "share."
    )
    ENGINE_WANTS = "The engine wants {tried_bytes}, {free_bytes} of {capacity_bytes} are free."
    ENOUGH_IN_SUM = "{sum_of}: enough in sum, so what is missing is a contiguous piece. Possible, not proven."
    EVIDENCE_DOES_NOT_DECIDE = "The evidence does not decide."
    EXACT_FIGURES = "nvidia-smi or a memory snapshot, which print exact figures"
    EXCESS_BELOW_PRINT_ERROR = "The excess is below the print error of {error}; the free memory speaks for the limit."
    EXPANDABLE_SEGMENTS_NOT_ON = "Expandable segments are not on."
    EXPANDABLE_SEGMENTS_ON_ALREADY = "Expandable segments are already on, so the first allocator lever is spent."
    EXPANDABLE_SEGMENTS_ON_AND_FAILED = "Expandable segments are already on, and the request still failed."
    EXPANDABLE_SEGMENTS_ON_BUT_AROUND_ROLLOUT = (
        "Expandable segments are on, though such frameworks switch them off around the rollout (R-20)."
    )
    FAILED_BEHIND_ITS_END = (
        "Slurm says {name} all the same, so what failed came after the training: saving, a last evaluation, or a "
        "process that ended badly."
    )
    FAILED_IN_STEP = "{said}; it failed in step {failed:,}."
    FAILING_LINE_IS_RANDOM = "The failing line of code is a random victim."
    FAILING_STEPS_TOKENS_NOT_KNOWN = " The log does not say how many the failing step had."
    FAILING_STEP_HAD = " The failing step had {own:,}, {compared}"
    FAILING_STEP_HAD_MOST_TOKENS = (
        "The failing step had {own:,} tokens, more than any of the {count} steps before it ({most:,})."
    )
    FAULT_OF_ANOTHER_GPU = "The node check of {node} found a fault of GPU {faulty}: {reasons}."
    FEWER_GRAPH_CAPTURES = (
        "Fewer or smaller graph captures, or none, give it back; expandable segments do not reach these pools."
    )
    FEW_SAMPLES = "{samples} samples are few: they may lie between two evaluations."
    FIGURES_OF_THE_MESSAGE = (
        "the figures of the message (torchelastic's error.json has the whole text), or a memory snapshot"
    )
    FIGURE_IS_THE_NODES = "The figure is the node's: other jobs and the page cache are in it."
    FIRST_CUDA_ERROR_OF_PROCESS = "the first CUDA error of the process (CUDA_LAUNCH_BLOCKING=1)"
    FIRST_FAILURE = "The first failure is {signature}: {excerpt}"
    FRACTION_IS_SET = "A memory fraction is set for this process; the card itself is not full."
    FRAGMENTS_RAISE_RESERVED_TOO = "A cache that fragments makes the reserved memory rise too."
    FRAMES_OF_THE_CALL = "the frames of the call: pin_memory or cudaHostAlloc mean host memory"
    FRAMES_PIN_HOST_MEMORY = (
        "The frames of the traceback pin host memory, and CUDA reports that in the card's words (R-21)."
    )
    FREE_EQUALS_TRIED = (
        "Tried {tried} with {free} free: equal within the rounding of the message ({error}), so the card was "
        "full to the last page."
    )
    FREE_IS_AN_ESTIMATE = (
        "On Intel's devices the free figure is capacity less what PyTorch reserved, an estimate: another process "
        "may hold the rest."
    )
    FREE_MEMORY_READ_AFTER_FAILURE = (
        "Free memory is read after the failure; another process may have released it in between."
    )
    FREE_WAS_ENOUGH = "Tried {tried} while {free} were free: the figures contradict a plain shortage."
    GRAPH_POOLS_COUNT_AS_UNALLOCATED = "Before PyTorch 2.4 the pools of CUDA graphs count as unallocated (R-14)."
    HAD_RUN_FOR_HOURS = "had run for {ran:.1f} h"
    HAD_SAVED_CHECKPOINTS = "had saved checkpoints"
    HELD_BY_PRIVATE_POOLS = (
        "{pool} lie in private pools (CUDA graphs), which only their owner may use again; tried {tried}."
    )
    HELD_OUTSIDE_THE_ALLOCATOR = (
        "This process holds {outside} outside PyTorch's allocator (ordinary is up to {ordinary_context_bytes}), "
        "which is {excess} too many for a request of {tried}."
    )
    HOST_MEMORY_ROSE_STEADILY = (
        "Host memory of {whose} rose steadily, by {growth} from step {first:.0f} to {last:.0f} ({slope} a step): "
        "something in the job keeps it."
    )
    HOW_MUCH_THIS_PROCESS_HOLDS = "nvidia-smi on the node: how much of the card this process holds, and who else"
    IF_A_TRAINER_SHARES_THE_CARD = (
        "If a trainer of this job runs on the same card, the memory is its and the engine's share too large."
    )
    IF_MORE_WAS_FREE = "If a little more was free than was tried, something else refused the request."
    IN_BRACKETS = " ({pids})"
    IN_USE_BY_NOBODY_NAMED = "{hidden} of the card are in use by nobody that the message names; {short} were missing."
    ITS_WORDS_ARE_NOT_IN_THE_LOGS = "{upper}{excerpt}; what it said is not in the logs."
    IT_DID_NOT_ANSWER = "it did not answer"
    JOB_STATE_FROM_SLURM = "the job's state from Slurm"
    JUST_STARTED_AGAIN = "The job had just been started again: a predecessor that is still ending looks the same."
    KEPT_BATCHES_LOOK_THE_SAME = (
        "Batches kept until the next step, of sequences that grow by a curriculum, look the same."
    )
    KERNEL_LINE_IN_THE_OUTPUT = "The kernel's line came through the job's own output."
    KERNEL_LOG_OF_ITS_NODE = "the kernel log of its node"
    KERNEL_LOG_OF_NODE = "the kernel log of the node"
    KERNEL_LOG_OF_NODE_NAMES = "the kernel log of the node, which names the process"
    KILLED_BY_SOMEBODY = (
        "A process was killed by SIGKILL, and nothing says by whom: the OOM killer, scancel, --kill-on-bad-exit "
        "and torchrun's teardown send the same signal."
    )
    LARGER_THAN_THE_CARD = (
        "Tried {tried} on a card of {capacity}{slice_of}: one request is larger than the whole card, so a shape, "
        "the batch times the sequence, or a model that is not sharded is at fault."
    )
    LATER_CHECK_SAW_NOBODY = "The later check of {node} saw no other process; it may have ended meanwhile."
    LIMIT_IS_HIDDEN = "This PyTorch (2.1 to 2.4) hides a limit that is set."
    LIMIT_IS_NOT_PRINTED = " (PyTorch 2.1 to 2.4 does not print the limit)"
    LIMIT_IS_TESTED_FIRST = "The allocator tests the limit before it asks the driver, so the limit refused it."
    LIMIT_REFUSED_IT = (
        "Tried {tried} while {free} of the card were free, and this process is allowed {allowed} of {capacity}: "
        "the limit refused it."
    )
    LITTLE_ON_SUCH_A_CARD = "{held} are little on a card of {capacity_bytes}: the job itself all but fills it."
    LITTLE_UNALLOCATED = (
        "Reserved but unallocated is only {unallocated}, {share:.1%} of what is reserved: the working set "
        "fills the card."
    )
    LOGS_NAME_NO_OTHER_FAILURE = "{told}; the logs name no other failure."
    LOGS_OF_ALL_RANKS = "the logs of all ranks"
    LOGS_OF_RANKS_STAY_SILENT = "the logs of the ranks that stay silent"
    LOGS_OF_RANK_WENT_AWAY = "the logs of the rank that went away"
    LOG_SAYS_EXPANDABLE_SEGMENTS_NOT_SUPPORTED = (
        "The log says that expandable_segments is not supported on this platform"
    )
    MAY_BE_AN_ECHO = "{told}: this may be its echo."
    MEMORY_EVENTS_OF_STEP_CGROUP = "memory.events of the step's cgroup"
    MEMORY_FOLLOWS_TOKENS = (
        "Memory of {whose} follows the tokens of the steps (Kendall's tau {tau:.2f} over {count} samples): about "
        "{each} for 1,000 tokens, which ranged from {least:,.0f} to {most:,.0f}.{failing}"
    )
    MEMORY_SUMMARY = "torch.cuda.memory_summary() or a memory snapshot of this rank"
    MEMORY_SUMMARY_WOULD_PROVE = "torch.cuda.memory_summary() or a memory snapshot of this rank, which would prove it"
    MESSAGE_DOES_NOT_SAY_WHOSE = "The message does not say whose memory that is."
    MESSAGE_IS_CUT = "The message is cut, so what the process had reserved is not known."
    MESSAGE_NAMES_PROCESSES = "The message names process{es} {pids} on the same card with {held}"
    MESSAGE_NAMES_PROCESS_TOO = "The message names process {listed} too."
    MISSING_SET_DEVICE = "a missing set_device, map_location or CUDA_VISIBLE_DEVICES"
    MORE_THAN_BEFORE = "more than any before."
    MOST_BEFORE = "the most before it was {most:,}."
    NCCL_REPORTS_FAILURE_OF_CUDA = (
        "NCCL reports a failure of CUDA, and neither its last error nor a warning speaks of memory."
    )
    NODES_OWN_RECORDS = "the node's own ECC, row remap and XID records"
    NODE_CHECK_FOUND_A_FAULT = "The node check of {node} found a fault{of_gpus}: {reasons}."
    NODE_CHECK_FOUND_NO_FAULT = "The node check of {node} found no fault, and only the job's own output tells of one."
    NODE_CHECK_FOUND_TENANTS = (
        "The node check of {node} found memory of the card in other hands: {names:, } with {held}{missing}."
    )
    NODE_NOT_IN_THE_LOG = "The log does not say on which node the failing rank ran."
    NONE_IS_A_RANK = "None of them is a rank of this job: the log gives the pid of every rank."
    NOTHING_SPEAKS_OF_MEMORY = "Nothing in the log speaks of memory."
    NO_KNOWN_FAILURE = "The logs hold no failure that any signature knows."
    NO_PROCESS_LISTED = "no process that is listed"
    NO_SETTING_AND_NO_CARD_HELPS = "No allocator setting and no free card could have served it."
    NO_SETTING_HELPS = "No allocator setting could have served it."
    NO_STEP_OF_SAME_SHAPE = "No step of the same shape had succeeded before in this run."
    NVML_GIVES_NO_SIZES = "NVML gives no sizes here (WSL, vGPU or MIG), so the sum is all that is known."
    OF_GPUS = " of GPU {gpus:, }"
    ONE_PIECE_IS_MISSING = "{unallocated} more are reserved and unallocated: what is missing is one piece, in either."
    ONLY_COLLECTIVE_TIMEOUTS = "The logs hold collective timeouts and no word of memory: a hang or a lost rank."
    ONLY_EXCEPTION_MAY_BE_AN_ECHO = "{told}; the log's only exception may be what a killed process left behind."
    ONLY_KEYBOARD_INTERRUPT = "The only exception is KeyboardInterrupt: a person, or the launcher, sent SIGINT."
    ONLY_PROCESS_NAMED = (
        "Process {self_pid} with {process_bytes} is the only one that the message names and it holds far more "
        "than PyTorch reserved here; if it is not this process under its host's pid, it is somebody else's."
    )
    ONLY_WHAT_CANCELLING_DOES = (
        "Slurm cancelled the step, and the logs hold nothing but what cancelling does to all ranks alike."
    )
    OBJECTION = "{kind}: {reason}"
    ON_WHICH_NODE = "on which node the failing rank ran"
    OTHERS_HOLD_AS_MUCH = (
        "{others} other process{es}{named} hold{s} {held} of this card, {each}about as much as the one "
        "that failed, and the launch script starts {local_processes} on a node: they are its own, and share a "
        "GPU (a rank that the program does not read, a missing set_device or CUDA_VISIBLE_DEVICES)."
    )
    OTHER_PROCESS_WITHOUT_PURPOSE = "Nothing says what the job's other process is for."
    OTHER_VARIABLE_IS_READ = "{cuda_name} is set too, and it is the one that PyTorch reads"
    OUTPUT_OF_THE_FIRST_RANK = "the output of the rank that ended first"
    OWNERS_AND_COMMAND_LINES = "the owners and command lines of these processes, on the node"
    OWN_PIDS_NOT_ALL_KNOWN = (
        "The log does not give the pids of all of the job's own processes, so this may be one of them."
    )
    OWN_RANKS_SHARE = (
        "{count} other {noun} of this job ({pid} {pids}) hold{s} {total} of this card: ranks share a "
        "GPU ({remedy})."
    )
    PEAK_OF_RESERVED_MEMORY = "The peak of reserved memory"
    PEAK_ROSE = "The peak of {whose} rose by {growth} from step {first:.0f} to {last:.0f}, so the working set grew."
    PIDS = "{pids:, }{more}"
    PIDS_ARE_THE_HOSTS = (
        "Process {self_pid} of the message is this process itself, so the message's pids are the host's and "
        "cannot be compared with those of the log: the others may be the job's own."
    )
    PIDS_NOT_IN_THE_LOG = "The log does not name these pids: strangers of that size look the same."
    PIECES_OF_ANOTHER_STREAM = (
        "Free pieces of another stream count as unallocated too, and cannot serve this one (R-15){why}."
    )
    PINNED_MEMORY_IS_REPORTED_ALIKE = "Refused pinned host memory is reported in the same words."
    PINNED_MEMORY_PRINTS_THE_SAME = (
        "Refused pinned host memory prints the same words, and these frames do not tell (R-21)."
    )
    PROCESS = "process {pid} ({name}, {owner})"
    PROCESSES_NOT_IN_THE_LOG = "The log does not name these processes: strangers of that size look the same."
    PROCESSES_WITHOUT_SIZE = (
        "The message names process{es} {pids} without a size, and {rest} of the card are in nobody else's "
        "hands; {short} were missing."
    )
    RANKS_LOST_CONNECTION = "Ranks lost the connection to another one, and no line says why that one went away."
    RANKS_PRINTED_NO_TIMEOUT = "Rank{s} {silent} printed no timeout and {are} the first suspect."
    RAN_LONG_WITHOUT_STEPS = "The job {how}, but its logs show no step that could be read, so whether it grew is open."
    REACHED_LAST_STEP = "The logs reach the last step ({last_step} of {total_steps}) and show no failure."
    REACHED_LAST_STEP_SO_PERHAPS_A_HELPER = (
        "The logs reach the last step: the victim may be a helper, and no rank (R-24)."
    )
    REQUESTS_ARE_ROUNDED_UP = (
        "roundup_power2_divisions is set, so what is allocated is more than the tensors asked for."
    )
    RESERVED_AND_TRIED_AGAINST_LIMIT = (
        "Reserved {reserved} and tried {tried} make {in_all}, {over} the {allowed} that this process is allowed"
    )
    RESERVED_CREPT_AWAY = (
        "Reserved memory of {whose} crept {growth} away from the greatest allocation between step {first:.0f} "
        "and {last:.0f}."
    )
    RESERVED_PEAK_ROSE = (
        "The peak of reserved memory of {whose} rose by {growth} between step {first:.0f} and {last:.0f}, and "
        "much of it was not allocated in the end: the cache grew, which is no leak."
    )
    REST_NOT_ALLOCATED = (
        "{told} {rest} are in use and not allocated by this program: unused in CUDA's pool, outside it, or "
        "another process's."
    )
    REST_NOT_RESERVED = (
        "{rest} of the card are in use and not reserved by PyTorch, and this message lists no processes."
    )
    REST_NOT_RESERVED_AND_NOBODY_LISTED = (
        "{rest} of the card are in use and not reserved by PyTorch, {short} were missing, and this message lists "
        "no processes: another process, or this one outside the allocator."
    )
    ROSE_AT_SAMPLES = (
        "{what} of {whose} rose at {rising_share:.0%} of {samples} samples, from {before} at step {first:.0f} to "
        "{after} at step {last:.0f}: {slope} a step{tokens}."
    )
    ROSE_LESS_THAN_WAS_MISSING = "It rose by {growth} in all, less than the {short} that were missing."
    RUNS_TRAINER_AND_ENGINE_TOGETHER = "and {framework} runs trainer and {engines} on the same cards"
    SAME_STATUS_FROM_ELSEWHERE = (
        "The same status comes from a driver mismatch, an earlier fault or an unsupported layout."
    )
    SAYS_SO_TOO = "{signature} says so too."
    SETS_EXPANDABLE_SEGMENTS_BUT = "{new_name} sets expandable_segments, but {unread}"
    SETTINGS_HOLD_A_FRACTION = (
        "The job's settings hold a memory fraction for the process, which this message does not print."
    )
    SHARDED_TRAINING = ": sharded training uses several streams"
    SHARE_UNALLOCATED = "{share:.0%} of the reserved memory is unallocated."
    SHORTAGE_IS_MORE_COMMON = (
        "Without these figures a shortage cannot be told from fragmentation or another process; shortage is the "
        "more common."
    )
    SHOWN_AS_THE_JOBS_OWN = "which the log shows as this job's own"
    SIGKILL_WITHOUT_SENDER = "SIGKILL without a sender in the log is what the kernel's OOM killer leaves behind."
    SIGNALLED_FROM_OUTSIDE = (
        "The launcher received a signal from outside and shut its workers down; nothing had failed before."
    )
    SIZE_IS_GARBAGE = "The message asks for {tried}, which no device has: the size is garbage, not a shortage."
    SMALL_REQUEST_ON_A_FULL_CARD = (
        "Tried {tried}, which stands for any small request: the card was simply full ({allocated_bytes} "
        "allocated, {share:.0%} of the reserved memory in slivers)."
    )
    SMALL_SHARE_UNALLOCATED = "Only {share:.1%} of the reserved memory is unallocated."
    SOMETHING_ELSE_HOLDS_MEMORY = "Something else holds memory of the card, and the logs do not say what."
    SOME_ARE_THE_JOBS_OWN = "{own} of the processes in the message are this job's own."
    STATE_AND_NO_FAILURE = "The job's state is {name}, and its logs show no failure of their own."
    STATE_OF_UNCHECKED_NODE = "the state of {node}, whose check is unknown: {why}"
    STEPS_HAD_SUCCEEDED_BEFORE = "{done} steps had succeeded before."
    STEPS_TOOK_THE_SAME_TIME = "A step took the same time all along, so its sequences did not grow with the memory."
    STOP = "{said}."
    SUM_EQUALS_TRIED = (
        "{sum_of}: equal to what was tried within the rounding of the message ({error}), so at best the last "
        "byte would have fitted."
    )
    SUM_EXCEEDS_BY_ROUNDING = "The sum exceeds the request by less than the message's rounding."
    SUM_LESS_THAN_TRIED = "{sum_of}: less than tried, so no allocator setting could have served it."
    SUM_LITTLE_MORE_THAN_TRIED = "{sum_of}: a little more than tried."
    SUM_MORE_THAN_TRIED = "{sum_of}: more than tried."
    THE_PEAK = "The peak"
    TOGETHER_LARGER_THAN_CARD = (
        "The engine's share and the trainer's working set together are larger than the card: lower the share."
    )
    TOKENS_ROSE = (
        "The tokens of a step rose from about {level:,.0f} to {points:,.0f} over {count} samples; the log prints "
        "no memory that could show how much that costs."
    )
    TOKENS_TAKEN_INTO_ACCOUNT = ", with the tokens of the steps taken into account"
    TRACEBACK_IS_THE_ENGINES = (
        "The traceback is the inference engine's: its share, most of it cache, counts as allocated, and a "
        "smaller share leaves more for its activations and graphs."
    )
    TRAINER_HOLDS_THE_REST = (
        "{framework} runs its trainer on the same cards, which holds the rest: lower the engine's share."
    )
    TRAINER_LOOKS_THE_SAME = "A trainer of the same job on the same card looks the same."
    TRAINER_REACHED_THE_END = "The trainer says that it reached the end that was set, and the logs show no failure."
    TRIED_AGAINST_AVAILABLE = "Tried {tried}; free {free} + reserved but unallocated {unallocated_bytes} = {available}"
    TRIED_WITH_FREE = "Tried {tried} with {free} free and {allocated} of {capacity} allocated."
    TWO_MEMORY_SNAPSHOTS = "two memory snapshots some steps apart, to name what is kept"
    ULIMIT_AND_FREE_MEMORY = "ulimit -l and the node's free memory at that moment"
    UNALLOCATED_ONLY_TIMES_TRIED = "The unallocated part is only {ratio:.2f} times what was tried."
    UNALLOCATED_TIMES_TRIED = "The unallocated part is {ratio:.1f} times what was tried."
    UNALLOCATED_WITHIN_LIMIT = (
        "{unallocated} of what it holds are unallocated, so within the limit the memory may be fragmented."
    )
    VARIABLE_NOT_READ = "PyTorch 2.{newest} does not read that variable for CUDA ({cuda_name} is the name it reads)"
    VICTIM_MAY_BE_A_HELPER = "The kernel counts helper processes too: a rank need not have been the victim (R-24)."
    WENT_AWAY_WITHOUT_A_WORD = (
        "A rank that goes away without a word may have been killed, and the OOM killer is one that does so."
    )
    WERE_MISSING = "; {short} were missing"
    WHAT_CORRUPTED_THE_SIZE = "what corrupted the size, often a collective that failed earlier"
    WHAT_TAKES_IT = "what in this process takes it: NCCL_DEBUG=INFO, or a memory snapshot"
    WHETHER_ANOTHER_RELEASED_MEMORY = (
        "whether another process released memory at that moment (free is read after the failure)"
    )
    WHETHER_A_FRACTION_IS_SET = "whether the program calls set_per_process_memory_fraction{hidden}"
    WHETHER_FRACTION_IS_THE_FAILING_PROCESS = "whether the fraction is that of the failing process"
    WHETHER_GRAPHS_ARE_CAPTURED = "whether CUDA graphs are captured (this PyTorch counts their pools as unallocated)"
    WHETHER_GRAPHS_ARE_NEEDED = "whether the graphs are needed at these sizes"
    WHETHER_SOMETHING_LIMITS = "whether CUDA graphs, a memory pool, MIG or a vGPU limit the allocation"
    WHICH_PROCESSES_ARE_ON_THE_CARD = "nvidia-smi on the node: which processes are on the card"
    WHICH_PROCESS_HOLDS_THE_REST = "nvidia-smi on the node: which process holds the rest"
    WHICH_PROCESS_OF_THE_JOB = "which process of the job it is"
    WHICH_RANK_FAILED = "which rank failed"
    WHILE_A_CHECKPOINT_WAS_LOADED = (
        "It happened while a checkpoint was loaded, before any batch: what is read stands beside what is there "
        "already, so a size of the training is not the question."
    )
    WHILE_STARTING = "It happened before the first step, while the job was starting: a static size."
    WHILE_THE_CARD_IS_FREE = "{figure}, while {free} of the card are free."
    WHOSE_IT_IS = "nvidia-smi on the node, to see whose it is"
    WHOSE_PROCESSES = (
        "whose processes these are (nvidia-smi and the owner of each pid on the node): pids in a container are "
        "the host's, and a trainer may share its card with its own rollout engine on purpose"
    )
    WHO_CANCELLED_IT = "who cancelled it: Slurm's accounting (State) and the controller's log"
    WHO_ELSE_BY_XPU_SMI = "xpu-smi on the node: who else holds memory of the device"
    WHO_HELD_THE_CARD = "nvidia-smi of the node at that moment: who held the card's memory"
    WHO_SENT_SIGNAL = "who sent the signal"
    WHO_SENT_SIGNAL_BY_ACCOUNTING = "who sent the signal: Slurm's accounting, and the logs of the job's other nodes"
    WITHIN_THE_FIRST_STEPS = "It happened within the first steps of this run (last: {last_step}): a static size."
    WITHOUT_THEM_IT_FITS = "{listed}; {short} were missing, so without {them} the request would have been served."
    WITHOUT_THE_KERNELS_STAMP = (
        "The line stands in the job's own output without the kernel's stamp, and anybody may print it: a hint, "
        "until the node's own records say so."
    )
    WORDS_INSIDE_A_SENTENCE = "The words stand inside a sentence of the job's own text, which may quote them."
    WOULD_BE_FULL_AT = "At this rate the {capacity} that it can have would have been full at about step {full:,.0f}"
    WOULD_FAIL_ON_AN_EMPTY_CARD = (
        "Tried {tried} on a card of {capacity}{slice_of}, of which {outside} are this process's CUDA context and "
        "libraries: it would fail on an otherwise empty card."
    )
