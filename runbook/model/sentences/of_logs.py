"""What the logs' reader has to say of a story."""

from __future__ import annotations

from runbook.model.sentences import Wording


class Say(Wording):
    """By what is said."""

    ABORTED_AFTER_LOST_PEER = "A process aborted after it, or another one here, had lost a peer; that came first."
    ABSURD_SIZE = "The size that was asked for is absurd, so nothing ran out of memory (R-13)."
    ABSURD_SIZE_AFTER_COLLECTIVE = "The absurd size stands behind a failed collective and follows from it (NCCL-08)."
    ACCOUNTING_SAYS_OUT_OF_MEMORY = (
        "Slurm's accounting says OUT_OF_MEMORY, so the kernel ended the process that died by SIGKILL."
    )
    BY_STEPS_BOTH_STAMPED = "steps that both stamped"
    BY_WATCHDOG_TIMEOUTS = "watchdog timeouts of the same collective"
    CLOCKS_APART = (
        "The clock of {there} is {gap:.1f} s {side} that of {here}, within {spread_s:.1f} s, by {marks} {by}; stamps "
        "are compared with that taken off."
    )
    CLOCKS_NOT_KNOWN = "How far the clocks of {here} and {there} are apart is not known; a second is allowed for."
    DID_NOT_END_THE_JOB = "{handled} line{s} ({kinds}) did not end the job: {reason}."
    EARLIER_ATTEMPTS_FAILED = "Earlier attempts in the same logs failed too; the failure named is the last attempt's."
    ENDED_BY_ITSELF_BY_TABLES = "torchrun's tables say that it ended by itself while the others were ended by signals"
    ENDED_BY_SIGNAL = "ended by a signal ({signal})"
    ENDED_WITH = "ended with {code}"
    ENDS_OF_FILES_READ = (
        "Of {some} of {files} files only the beginning and the end were read ({left_out_mib} MiB left out), back to a "
        "completed step or a time before the first failure."
    )
    EXIT_CODE = "exit code {code}"
    EXIT_CODE_OF_SIGNAL = "exit code {code} ({signal})"
    EXPLAINS_EXCEPTION = (
        "{id} ({title}) explains the program's exception in the same attempt, whichever of them was printed first."
    )
    FAILED_IN_TEARDOWN = (
        "{who} failed after rank {dead} had ended, while the launcher took it down; it is not the first."
    )
    FIRST_BY_LINE = "{count} report a failure; {who} is named because its line comes first in {name}."
    FIRST_BY_STAMP = "{count} report a failure; {who} did so first by its time stamp."
    FIRST_KILLED = (
        "{who}{pid}{node} is the first whose death the logs show, by SIGKILL{more}. Nothing says who sent it: the OOM "
        "killer, scancel and teardown send the same signal (R-22)."
    )
    FROM_EARLIER_ATTEMPT = "The failure is from an earlier attempt; the last attempt in the logs shows none of its own."
    JOB_ENDED_WELL = "the job ended well"
    JOB_WENT_ON_BEHIND_IT = "the job went on behind it, or the line itself says that it was handled"
    JOB_WENT_ON_BEHIND_THEM = "the job went on behind them, or the lines themselves say that they were handled"
    KERNEL_LINE_NAMES_NO_RANK = (
        "{id} ({title}) names no rank, and anybody may print such a line into a job's output; rank {rank}'s exception "
        "says itself what ended it."
    )
    LAST_ATTEMPT_FAILED_AT_START = (
        "The last attempt failed while starting ({id}), before any step; the failure that it was restarted after is "
        "named."
    )
    LINES_NOT_COUNTED = (
        "The line numbers of {findings} findings were not counted: their files are too large and were not read whole."
    )
    LINE_WITHOUT_RANK = "the line of {id}, which names no rank,"
    MESSAGE_PUT_TOGETHER = "A message was cut by the launcher's label and put together again."
    MORE_AFTER = "; {more} more after it"
    NAMES_NO_PROCESS = "names no process{where_it_was}, and no rank is known to have died by SIGKILL there"
    NAMES_PROCESS_OF_NO_RANK = "names process {pid}{where_it_was}, and no line says which rank that was"
    NODE_FROM_BLOCK_DISTRIBUTION = (
        "The node of rank {rank} ({node}) is inferred from a block distribution of {world_size} ranks over the job's "
        "nodes; no line of the log says it."
    )
    NO_RANK = "No line says which rank failed."
    ONLY_CONSEQUENCES = "The logs show only consequences; the rank that failed first left no line of its own."
    ONLY_TIMEOUTS = "Only collective timeouts are in the logs: {timed} rank{s} waited, and nothing tells for whom."
    ONLY_TIMEOUTS_AND_RANKS_BEHIND = (
        "Only collective timeouts are in the logs. Rank{s} {list} had queued fewer collectives ({behind} against "
        "{most}) and {are} the first to look at. A suspicion, no proof."
    )
    ONLY_TIMEOUTS_AND_SILENT_RANKS = (
        "Only collective timeouts are in the logs. Rank{s} {list} printed none and {are} the first to look at: the "
        "others may have waited for it. A suspicion, no proof."
    )
    ONLY_WORDS_MAY_BE_QUOTED = "The only words on a failure stand inside a sentence, which may quote them."
    OOM_KILLER_MAY_NAME_A_HELPER = "The report of the OOM killer {names}: it may be a helper (R-24)."
    OOM_KILLER_NAMES_NO_RANK = (
        "The report of the OOM killer names no rank; rank {rank} is the only one{place_word} that died by SIGKILL "
        "(R-22)."
    )
    OOM_KILL_MAY_BE_A_HELPER = (
        "{id} reports an OOM kill, but no rank is known to have died by SIGKILL; an exception of its own ended the "
        "job, so the victim may have been a helper (R-24)."
    )
    OUTPUT_OF_RANK_STOPS = "The output of rank {rank}{on} stops {gap:.0f} s before that of any other rank."
    PLACED_ON_NO_NODE_OF_THE_JOB = (
        "The log places the first failure on {node!r}, which is no node of job {job}; that is not believed, and the "
        "failing rank's node counts as not known."
    )
    PROCESS_IS_RANK = "Process {pid} of the message is rank {rank} of this job."
    PROCESS_WITHOUT_RANK = "a process without rank"
    QUOTED_AND_PROCESS_FAILED = (
        "The failure is only quoted in a warning, but its process ended with an error code after it."
    )
    RAISED_WHILE_HANDLING_CAUSE = "{who}'s {id} was raised while it handled {said}, which is the cause."
    RANK = "rank {rank}"
    RANK_ALONE_ENDED_WITH_ERROR = (
        "The failing line names no rank; rank {rank} alone is reported to have ended with an error."
    )
    RANK_ALONE_IS_NAMED = "The failing line names no rank; rank {rank} is the only one that these lines name."
    RANK_ENDED_BY_ITSELF = (
        "Rank {rank}{on} ended by itself with exit code {exit_code} by torchrun's table, but its own words are not in "
        "these logs.{tie}"
    )
    RANK_ENDED_BY_SIGNAL = (
        "Rank {rank}{on} ended by a signal ({exit_code}) that no line explains, and the others lost it."
    )
    RANK_ENDED_BY_LAUNCHERS_WORD = "Rank {rank}{on} {why} by its launcher's word, and no line says why."
    RANK_FROM_GPU = "Rank {rank} is inferred from GPU {device} and torchrun's table, not from its line."
    RANK_FROM_SRUN = "The failing line names no rank; task {rank} is the first that srun reports as ended."
    RANK_FROM_TORCHRUN = "The failing line names no rank; rank {rank} is from torchrun's table of failures."
    RANK_IS_LOCAL_RANK = "Rank {rank} is the local rank that a line names: no second node shows in the logs."
    RANK_KILLED_TOO = (
        "Rank {rank} was also killed by SIGKILL, and the host's OOM killer was at work; whether that came before is "
        "not known."
    )
    RAN_OUT_AFTER_ITS_TIMEOUT = (
        "{who} ran out of memory only after its own collective had timed out, so it was waiting for another rank."
    )
    SAME_SECOND = "the same second"
    SECONDS = "{apart:.0f} s"
    STAMPS_READ_AS_UTC = "Stamps without a time zone were read as UTC."
    STAMP_EARLIER_LINE_LATER = (
        "The stamp of {who} is {gap:.1f} s earlier although its line comes later: their clocks differ or their output "
        "was buffered, so this order is not certain."
    )
    STANDS_OFTEN = "{identity} stands {count} times in the logs."
    STEPS_BEHIND_BY_BUFFER = (
        "Steps stand behind the failure in the log, as they do when a process buffers its output; the job ended badly "
        "and nothing else explains it, so the failure counts."
    )
    STEPS_OF_RANKS_STOP = "The steps of rank{s} {list} stop at {step}, those of the others at {furthest}."
    TASKS_OUT_OF_MEMORY = (
        "srun reports tasks {tasks:, } out of memory in one line; rank {rank} is named because it stands first: a tie."
    )
    TIE_BY_CLOCK = "A tie by the clock: {names} failed within the same second."
    TIE_IN_WHOLE_SECONDS = " A tie with rank{s} {list}: the tables give whole seconds."
    TIE_OF_KILLED_RANKS = (
        "A tie: ranks {rank}, {others} died by SIGKILL and the report of the OOM killer names none; rank {rank} is "
        "named because its end is reported first."
    )
    TIE_OF_STAMPS = (
        "A tie: {named} failed within {within} of {who}, which is named because {why}; the stamps and the clocks of "
        "several nodes do not order them further."
    )
    TIE_WITHOUT_STAMPS = (
        "A tie: {count} processes report a failure in different files, and without time stamps on all of them which "
        "was first is not known ({who} or {named}); {who} is named because {why}."
    )
    VICTIM_ENDED_BEFORE = "The OOM killer's victim ended {first:.0f} s before any process printed a failure."
    WAS_READ_FIRST = "{path} was read first"
    WORDS_MAY_BE_QUOTED = "Words of {kinds} stand inside a sentence, which may quote them; they did not count."
