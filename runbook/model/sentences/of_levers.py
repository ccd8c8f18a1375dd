"""What levers, constraints, edits and ladders have to say."""

from __future__ import annotations

from runbook.model.sentences import Wording


class Say(Wording):
    """By what is said."""

    ACCUMULATION_NOT_KNOWN = "the accumulation steps are not known, so the global batch could not be kept"
    ACTIVATIONS_FALL_TO = "what grows in proportion to {spelling} (activations, logits) falls to about {new}/{present}"
    ALLOCATOR_BACKEND_IGNORES = "the allocator's backend is {backend}, which ignores {option}"
    ALLOCATOR_SETTING_ALREADY = "the allocator's setting is {text} already"
    ALLOCATOR_SETTING_GIVES_TWICE = "the allocator's setting {text!r} gives {twice} twice"
    ALLOCATOR_SETTING_NOT_KEY_VALUE = "the allocator's setting {text!r} has a part that is no key:value: {item!r}"
    ALLOCATOR_SETTING_OPEN_BRACKET = "the allocator's setting {text!r} has an open bracket"
    ALL_RANKS_SHARE_ALREADY = "{spelling} is {present}: all {world} ranks share the states already"
    AND_SO = ": {why}"
    ANOTHER_IN_EACH_SUBMISSION = "it is another one in each submission ({value})"
    ASKED_OF = "{question:?} ({shown})?"
    ATTENTION_HEADS_NOT_KNOWN = "how many attention heads the model has is not in the template"
    A_MULTIPLE_OF = "a multiple of {samples}"
    BATCH_CANNOT_BE_PINNED = "the global batch size is not set and cannot be pinned: {why}"
    BATCH_COUNTS_PASSES = "{spelling} counts the passes of an optimizer step ({place}): a smaller one frees nothing"
    BATCH_DOES_NOT_DIVIDE_AMONG_RANKS = "a global batch of {total} does not divide among {fewer} ranks"
    BATCH_IS_PINNED = "the global batch was micro-batch × ranks = {total} by default; it is pinned there"
    BATCH_NOT_DESCRIBED = "the system's document does not say what makes up the global batch"
    BATCH_NOT_PINNED_RANKS_NOT_KNOWN = (
        "the global batch size is not set and the number of ranks is not known, so it cannot be pinned"
    )
    BATCH_OVER_NODES = "{micro} × {steps} × {nodes} nodes = {new_micro} × {new_steps} × {left} nodes"
    BATCH_OVER_RANKS_LEFT = "global batch {total} = {new_micro} × {new_steps} × {fewer} ranks"
    BELOW_FLOOR = "{spelling} {number} is below {floor}"
    BELOW_OTHER = "{spelling} {number} is below {shown} {other}"
    BOTH_EDGES_HAVE_THEIR_LAYERS = "both edges of {stages} pipeline stages have their number of layers already"
    BOTH_NAMES_SET = "{name} and {new_name} are both set: both get the same value"
    BOTH_NAMES_SET_AND_DIFFER = "{name} and {new_name} are both set and differ, so which one holds is not certain"
    BUDGET_BELOW_LONGEST = "{spelling} {budget}{over} would not hold the longest sequence of {longest} tokens"
    BUDGET_NO_LESS_THAN_BATCH = (
        "a budget of {budget} tokens is no less than the {micro} × {total} of the present micro-batch"
    )
    CAN_CUDA_GRAPHS_BE_FEWER = "Can CUDA graphs be switched off, or captured for fewer sizes?"
    CAN_IT_BE_RESHARDED = "Can the checkpoint be loaded at another sharding degree?"
    CAN_PROGRAM_TAKE_IT_OUTSIDE = "Can the program take {spelling} from its command line or a configuration file?"
    CHANGES_EXPERIMENT = "it changes the experiment ({shown})"
    CHANGE_IN_PROGRAM = "{spelling} to {new} ({where})"
    CHANGE_IN_PROGRAM_BESIDE = "{spelling} to {new} (not set, beside {where})"
    CHANGE_OF_OPTION = "{spelling} to {new}"
    CHECKPOINT_CAN_BE_DELETED_LATER = (
        "{named}{value}: {why} Once the relaunched job saves, {path} can be deleted; copy it where it is to be kept."
    )
    CHECKPOINT_LIKE_FROM_SCRATCH = "the checkpoint is of step {wanted}, which a start from scratch looks like"
    CHECKPOINT_STEP_NOT_KNOWN = "the checkpoint's step is not known, so the log cannot prove it"
    CHOICE_MAKES_SOMETHING_ELSE = "{shown} is chosen, which makes {spelling} something else than {wanted}"
    CHOICE_NOT_KNOWN = "what {shown} makes of {spelling} is not known"
    COMES_FIRST_AND = "{title} comes first, and {why}"
    CONFIGURATION_NOT_HERE = "{path}, which {place} names, is not here"
    CONFIGURATION_NOT_READ = "the configuration that {place} names was not read: {why}"
    COPY_THE_ONLY_CHECKPOINT = "Before the relaunch, copy {path}: it is the only checkpoint, and is written over."
    COUNTS_PASSES_NOT_UPDATES = (
        "{name} at {file}:{line} counts passes, not updates, and the training ends by it ({limit}): with more "
        "accumulation it makes fewer updates"
    )
    DATA_PARALLEL_NOT_KNOWN = "the number of data-parallel ranks is not known"
    DATA_PARALLEL_NOT_KNOWN_BATCH_OPEN = (
        "the number of data-parallel ranks is not known, so it is not certain that the batch divides"
    )
    DEGREES_ARE_NOT_THE_RANKS = "{names} = {product} is not the {ranks} data-parallel ranks of the job"
    DEGREES_CANNOT_BE_MADE_RANKS_LEFT = "{names} = {product} cannot be made the {fewer} data-parallel ranks left"
    DEGREES_DO_NOT_DIVIDE_RANKS_LEFT = "{names} = {product} does not divide the {fewer} data-parallel ranks left"
    DEGREES_DO_NOT_STAND_ALONE = "{spelling} is {text!r}, in which the degrees to move do not stand by themselves"
    DEGREE_CANNOT_BE_HALVED = "{spelling} is {text!r}: {give}{present} cannot be halved"
    DEGREE_DOES_NOT_DIVIDE_RANKS = "{spelling} {present} does not divide the {world} ranks"
    DEGREE_DOES_NOT_GO_WITH_HEADS = "a degree of {degree} does not go with {heads} {words}"
    DISTRIBUTION_NAMES_NODES = "--distribution=arbitrary places the ranks on named nodes"
    DOES_CHOICE_HAVE = "Does {shown} have {spelling} {wanted}?"
    DOES_DEGREE_DIVIDE_ALL_HEADS = "Does {degree} divide the model's attention heads and its key-value heads?"
    DOES_DEGREE_DIVIDE_HEADS = "Does {degree} divide the model's {words}?"
    DOES_FILE_SET = "Does {path} set {keys}? It wins over the command line."
    DOES_NOT_DIVIDE = "{part} does not divide {whole}"
    DOES_NOT_GO_WITH_NODES_LEFT = "{whose}{spelling} {value} does not go with {left} of {nodes} nodes"
    DOES_NOT_LIST = "{spelling} does not list {value}"
    DOES_PROGRAM_TAKE = "Does the program take {spelling}?"
    DOES_THIS_BUILD_READ = "Does this build read {ROCM_NAME}? Then write it into the template with its present options."
    DO_DEGREES_DIVIDE_GPUS = "Does {degrees} divide the number of GPUs?"
    DO_NOT_DIVIDE_RANKS = "{shown} does not divide the {world} ranks"
    DO_NOT_DIVIDE_RANKS_LEFT = "{names: × } does not divide the {ranks} ranks left"
    DRAINED_AND_NODES_NOT_KNOWN = "{drained_by_us} drained already, and how many nodes the cluster has is not known"
    DRAINED_AS_MANY_AS_ALLOWED = (
        "{drained_by_us} of {nodes} nodes are drained by this tool already; the policy allows {most}"
    )
    EMBEDDING_LARGER_THAN_BUFFER = "the embedding alone needs {needed:GiB}, more than a buffer of {shown}"
    EXPANDABLE_SEGMENTS_SET_ALREADY = "expandable_segments:{value} is set already"
    EXPANDABLE_SEGMENTS_SET_ON_PURPOSE = "expandable_segments:{present} is set on purpose"
    EXPERT_BUNDLE_NOT_KNOWN = "how large one bundle of experts is, is not in the template"
    FAR_AS_IT_GOES = "{spelling} is {present} already, as far as it goes"
    FILE_WINS_OVER_COMMAND_LINE = "{spelling} {shown} of {file} wins over the command line"
    FIRST_REFUSED = " ({title}: {why})"
    FIRST_STEP_AFTER_CHECKPOINT = "its first step is {first}, after the checkpoint of step {wanted}"
    FIRST_STEP_ALTHOUGH_CHECKPOINT = (
        "its first step is {first} of {total_steps}, although the checkpoint is of step {wanted}"
    )
    FLAG_CANNOT_SWITCH_OFF = "{spelling} is on without being set, and a flag cannot say otherwise"
    FOLDER_WOULD_MOVE = (
        "{place}: {reason}, so the relaunch would neither find the checkpoints of the job that died nor write to their "
        "folder"
    )
    FOLLOWS_FROM_VARIABLE = "{spelling} follows from {variable} in the script: {code}"
    FOLLOWS_IN_FILE = "{spelling} follows in {file}:{line}"
    FOUND_AND_SO = "{found}: {why}"
    FREE_AT_FAILURE_NOT_KNOWN = "what was free when the request failed is not in the log"
    GARBAGE_COLLECTION_THRESHOLD_LEFT_OUT = (
        "garbage_collection_threshold is left out: older PyTorch fails an assertion on it beside expandable segments, "
        "and without a memory fraction it has no effect"
    )
    GOES_ON_FROM = "its log says that it goes on from step {said}"
    GOES_ON_FROM_ANOTHER = (
        "its log says that it goes on from step {said}, not from {wanted}, and its first step is {first}"
    )
    GPUS_DO_NOT_GO_WITH_NODES_LEFT = "--gpus={gpus} does not go with {left} of {nodes} nodes"
    HAS_EACH_NODE_GIB_TO_SPARE = "Has each node {allocated:.0GiB} of host memory to spare, within the job's limit?"
    HAS_EACH_NODE_MEMORY_TO_SPARE = (
        "Has each node host memory to spare for what the GPUs hold now, within the job's limit?"
    )
    HAS_NO_OPTION_FOR = "has no option for {what}"
    HAS_TO_BE = "{spelling} is {text}, and it has to be {wanted}"
    HAS_TO_BE_ONE_OF = "{spelling} is {text}, and it has to be {values: or }"
    HAVE_TO_BE_ALIKE = "these have to be alike: {shown}"
    HEADS_NOT_KNOWN = "how many {words} the model has is not in the template"
    HELD_IN_PRIVATE_POOLS = "{held:GiB} lie in private pools (CUDA graphs), which expandable segments do not reach"
    HOSTFILE_NOT_WRITTEN_BY_SCRIPT = "{spelling} {value} names the nodes, and the script does not write it"
    HOST_WOULD_BE_FULL = (
        "up to {allocated:.0GiB} would go to the host, which holds {share:.0GiB} already of a limit of "
        "{limit:.0GiB}"
    )
    HOW_LARGE_IS_THE_WORLD = "How many ranks (world size) does the training have?"
    HOW_MANY_ACCUMULATION_STEPS = "How many accumulation steps does the job take ({spelling})?"
    HOW_MANY_RANKS = "How many ranks (GPUs) does the training have?"
    HOW_MANY_TOKENS_HAS_A_SAMPLE = (
        "How many tokens can a sample have at most, prompt and answer together? Written into the template as "
        "{whole_one} it changes nothing, as long as no sample is longer."
    )
    IF_SO = "{first:?}? If so: {second}"
    IN_PLACE = " ({place}{unless})"
    IS = "{spelling} is {value}"
    IS_ALREADY = "{spelling} is {value} already"
    IS_EVERY_EXPERT_BUNDLE_SMALLER = "Is every bundle of experts smaller than {shown}?"
    IS_EVERY_TENSOR_SMALLER = "Is every tensor of the model, and every bundle of experts, smaller than {shown}?"
    IS_IT = "Is {spelling} {wanted}?"
    IS_IT_A_MULTIPLE_OF_GPUS = "Is {named} = {whole} a multiple of the GPUs?"
    IS_IT_A_MULTIPLE_OF_GROUP = "Is {size} × the ranks a multiple of {spelling} {group}?"
    IS_IT_A_MULTIPLE_OF_MICRO_BATCHES = "Is {spelling} {total} a multiple of {micro} × the ranks?"
    IS_IT_GIVEN_IN_WORD = "Was {spelling} given in {word}? Where it was not, it is {default}."
    IS_IT_ON = "Is {spelling} on?"
    IS_IT_ONE_OF = "Is {spelling} {values: or }?"
    IS_LEFT_OUT = "{item} is left out"
    IS_NOT_WHAT_IS_MEANT = "{spelling} is {text!r}, which is not {means}"
    IS_SET = "{shown} is set{why}"
    IS_SET_AND_SO = "{spelling} is {text}: {why}"
    IS_SET_TO = "{named} is set to {set}: {why}"
    ITEM_CANNOT_BE_TAKEN_OUT = "{spelling} is {text!r}, from which {value} cannot be taken"
    ITS_JOB_ID_WAS = " (its SLURM_JOB_ID was {job})"
    LADDER_AND = "{ladder:.}; {why}"
    LARGEST_TENSOR_NOT_KNOWN = (
        "how large the model's largest tensor is, is not in the template (vocabulary × hidden size × 2 bytes)"
    )
    LARGE_AS_IT_GETS = "{spelling} is {present} already, as large as it gets"
    LAUNCHER_TAKES_ONE_NODE = (
        "{spelling} is not given to the launcher, which takes one node then, and the job has several"
    )
    LAYERS_DO_NOT_DIVIDE_AMONG_STAGES = (
        "{layers} layers do not divide among {stages} pipeline stages: how they lie is not known"
    )
    LAYERS_ON_OTHER_STAGES = "{layers} layers on each of the other {inner} stages"
    LEAK_OR_SIZE = "{why}, so a leak cannot be told from a size"
    LESS_FREE_ON_CARD_THAN_ASKED = "less was free on the card than was asked for"
    LET_LINE_TAKE_RANKS_FROM_SLURM = "Let {path}:{number} take the number of ranks from SLURM_NTASKS."
    LET_SCRIPT_WRITE_HOSTFILE = "Let the script write {spelling}'s file from SLURM_JOB_NODELIST."
    LINE_GIVES_NUMBER_OF_RANKS = "{path}:{number} gives the number of ranks, {ranks}, which is not changed here"
    LOADS_ONLY_AT_ITS_SHARDING = "this system's checkpoints load only at the sharding they were saved with"
    LOADS_ONLY_WHAT_TRACKER_NAMES = "{title} loads only what its tracker names, which is not {path}"
    LOG_DOES_NOT_SHOW_IT_WENT_ON = "its log does not show that it went on from step {wanted}"
    LONGEST_NOT_KNOWN = "{spelling} is not in the template, so the longest sequence is not known"
    LONGEST_SEQUENCE_HAS_TO_FIT = (
        "{spelling} is {present} already, and the longest sequence of {longest} tokens has to fit"
    )
    LOOP_DOES_NOT_ACCUMULATE = "{place} steps in every pass, whatever {spelling} says: the loop does not accumulate"
    MADE_STEPS_AND_PRINTS_NO_MEMORY = (
        "the job made {last_step} steps before, and its log prints no main memory along them"
    )
    MAX_SPLIT_SIZE_MB_ALREADY = "max_split_size_mb is {present} already"
    MAX_SPLIT_SIZE_MB_AT_LEAST = "max_split_size_mb must be at least {SMALLEST_SPLIT_MIB}"
    MAX_SPLIT_SIZE_MB_LEFT_OUT = (
        "max_split_size_mb is left out: beside expandable segments it takes a wrong release path"
    )
    MAY_EXPANDABLE_SEGMENTS_BE_ON = "Somebody switched expandable_segments off. May it be switched on?"
    MAY_EXPERIMENT_BE_CHANGED = "May the experiment be changed ({shown})? {cost}"
    MAY_FILE_BE_CHANGED = "May {spelling} be changed in {file}? It wins over the launch template."
    MAY_FILE_DO_WITHOUT_NODE = "May {path} do without {name}? Then let it take its nodes from SLURM_JOB_NODELIST."
    MAY_IT_AND_IF_SO = "{title}: {may} If so: {question}"
    MAY_IT_BE_USED_ALL_THE_SAME = "{shown} is set: {why} May {title} be used all the same?"
    MAY_IT_CHANGE_EXPERIMENT = "May the experiment be changed by it? {cost}"
    MAY_JOB_START_AGAIN_WITH_IT = (
        "{why} May the job start again with {named} as it is? If not, change it in the template and submit the job "
        "anew."
    )
    MAY_PERSON_MAKE_CHANGES = "May a person set {changes: and }?"
    MAY_PERSON_SET_ALONE = "{asked} a person set {name} to {half}{where}? {alone}"
    MAY_PERSON_SET_BOTH = (
        "{asked} a person set {name} to {half}{where} and {other} to {twice} ({place})? {before} × {steps} = {half} × "
        "{twice}, so the global batch stays."
    )
    MAY_PERSON_SET_SMALLER_BATCH = (
        "{asked} a person set {name} to {half}{where}? Nothing that was read has the name of an accumulation, so the "
        "global batch would become smaller by the same factor. Or else: can the job have larger GPUs, or more of them?"
    )
    MAY_STAND_IN_THE_WAY = "whether {named} stands in the way is not known: {why}"
    MAY_TRACKER_BE_SET_BACK = "May the tracker beside {path} be set back to it? Another process could be writing there."
    MEMORY_OF_JOB_NOT_KNOWN = "how much main memory the job had on each node is not known"
    MEMORY_TO_HAVE_NOT_KNOWN = "how much main memory a job can have on a node is not known, and it had {limit:.1GiB}"
    MICRO_BATCHES_DO_NOT_MAKE_UP_BATCH = "micro-batches of {micro} do not make up the present global batch of {total}"
    MICRO_BATCH_SIZE_NOT_KNOWN = "the micro-batch size is not known"
    MICRO_BATCH_WOULD_CHANGE = (
        "the micro-batch would have to become {new_micro} in place of {micro}: {micro_in_checkpoint}"
    )
    MULTIPLE_NOT_WHOLE = "{spelling} {present} × {new} / {before} is no whole number"
    NAMED_NOT_IN_TEMPLATE = "{named} (not in the template)"
    NAMES_NODE_NOT_USED_ANY_MORE = "{path}:{number} names {name}, which is not used any more"
    NAME_FOR_ROCM_NOT_KNOWN = (
        "the log is of PyTorch for ROCm, and which name of the allocator's variable this build reads is not known"
    )
    NAME_IN_TEMPLATE_ALL_VERSIONS_READ = "{name} is the name in the template, and every version of PyTorch reads it"
    NAME_IN_TEMPLATE_OF_ROCM = "{name} is the name in the template; a build for ROCm that lacks the option warns only"
    NAME_IN_TEMPLATE_PYTORCH_READS = "{new_name} is the name in the template, and PyTorch {said} reads it"
    NAME_THAT_ALL_VERSIONS_READ = "{name} is the name that every version of PyTorch reads"
    NEEDS_BESIDE_IT = "{there:, } needs {absent:, } beside it"
    NEITHER_TELLS_LONGEST = (
        "neither {whole_one} nor {spelling} is in the template, so the longest sequence is not known"
    )
    NEW_BATCH_NO_MULTIPLE = "a global batch of {total} is no multiple of micro-batch {new_micro} × {ranks} ranks"
    NEXT_TO_NOTHING_UNALLOCATED = "only {share:.1%} of what is reserved is unallocated, so it frees next to nothing"
    NODEFILE_NAMES_JOB_NODES = "--nodefile names the job's nodes"
    NODELIST_ASKS_FOR_MORE = "--nodelist={named} asks for {kept} of the nodes, and {left} are free"
    NODES_NOT_KNOWN = "how many nodes the job has is not known"
    NOMINAL_BATCH_IS_NO_MULTIPLE = "the nominal batch of {nominal} at {place} is no multiple of the batch of {present}"
    NONE_IS_SET = "none of {shown} is set"
    NONE_OF_ALLOWED = "{spelling} is {present!r}, which is none of {allowed:, }"
    NOTHING_NEWER_WILL_BE_SAVED = "nothing newer will be saved: {why}"
    NOTHING_READ_HAS_THE_NAME = "nothing that was read has the name of {what}"
    NOT_ABOVE_ONE = "{spelling} is not above 1"
    NOT_ABOVE_OTHER = "{shown} is not above {other}, so {why}"
    NOT_BESIDE = "not beside {shown}: {why}"
    NOT_IN_TEMPLATE = "{spelling} is not in the template"
    NOT_IN_TEMPLATE_NOT_KNOWN = "{spelling} is not in the template, so its value is not known"
    NOT_KNOWN_BECAUSE = "{spelling} is not known: {why}"
    NOT_LIST_OF_NUMBERS = "{spelling} is {text!r}, not a list of numbers"
    NOT_NUMBER = "{spelling} is {text!r}, not a number"
    NOT_SET = "{shown} is not set"
    NOT_TAKEN_READS_NO_COMMAND_LINE = "the program does not take {spelling}: it reads no command line"
    NOT_WHOLE_NUMBER_ABOVE_ZERO = "{spelling} is {text!r}, not a whole number above zero"
    NO_CHECKPOINT_KNOWN_TO_RESHARD = (
        "no complete checkpoint is known to load at another sharding (the newest is {path})"
    )
    NO_DIAGNOSIS = "there is no diagnosis to act on"
    NO_FRAMEWORK_DESCRIBED = "the launch template and the log belong to no framework that a lever document describes"
    NO_KNOWN_DEFAULT = "{spelling} is not in the template and its default is not known"
    NO_KNOWN_DEFAULT_BATCH_NOT_KEPT = (
        "{spelling} is not in the template and its default is not known, so the global batch could not be kept"
    )
    NO_KNOWN_OPTION_SETS_IT = "no option of the command that is known sets {what}; {places}{unless}"
    NO_LADDER_FOR = "{title} has no ladder for {kind}"
    NO_LEVER_LEFT = "no lever is left that could be used without asking{reason}"
    NO_MICRO_BATCH_DIVIDES_EVERYWHERE = (
        "no micro-batch below {present} divides the batch exactly on every part of the job"
    )
    NO_MORE_MEMORY_TO_HAVE = "the job has {limit:.1GiB} on each node, and there are {new:.1GiB} to have"
    NO_MULTIPLE_OF_GROUP = "{size} × {ranks} ranks is no multiple of {spelling} {group}"
    NO_MULTIPLE_OF_RANKS = "{spelling} {total} is no multiple of {micro} × {ranks} ranks"
    NO_NUMBER_OF_LAYERS_FITS = (
        "no number of layers below {present} leaves the same for each of the other {inner} stages"
    )
    NO_NUMBER_OF_RANKS = "{spelling} is {value}, which is no number of ranks"
    NO_OPTION_OF_THE_KIND = "the template has neither {first} nor another option of the kind, so {why}"
    NO_OPTION_TO_GO_ON = (
        "the template has no option by which the program goes on from a checkpoint (such as {spelling}), so the "
        "relaunch would start from scratch"
    )
    NO_REDUCTION = "{nodes_left} of {nodes} nodes is no reduction"
    NO_SIZE_TO_BE_RAISED = "{spelling} is {present!r}, which is no size to be raised"
    NO_SMALLER_SIZE_TO_KEEP = "{spelling} has no smaller size to keep"
    NO_VALUE_DIVIDES_SAMPLES = "no value from {floor} to {most} divides {samples} exactly"
    NO_WHOLE_PART_FOR_EACH_RANK = "{named} would be {whole}, which does not give each of {world} ranks a whole part"
    NTASKS_DO_NOT_GO_WITH_NODES_LEFT = "--ntasks={tasks} does not go with {left} of {nodes} nodes"
    NUMBER_OF_NODES = "the number of nodes"
    OFF_OR_LEFT_TO_PROGRAM = "{spelling} is {present}, which switches it off or leaves it to the program"
    ONE_PIPELINE_STAGE = "there is one pipeline stage, so no layers can move to another"
    ONLY_ANOTHER_EXPERIMENT_LEFT = "only another experiment is left ({title}: {why})"
    ON_EACH_RANK_OF_SEQUENCE = " on each of {degree} ranks that share a sequence"
    ON_HOW_MANY_GPUS = "On how many GPUs does the job run?"
    OPTION_MAY_STAND_IN_WORD = "which option of the program sets {what} may stand in {word}, which is not known"
    OPTION_NOT_KNOWN = "which option of the program sets {what} is not known"
    OR_ELSE = "{question} Or else: {other}"
    OTHERS_ON_CARD_NOT_KNOWN = "whether another process holds memory of the card is not in the log"
    OTHER_PROCESSES_HOLD_LITTLE = (
        "other processes hold {held:.1GiB} of the card, so a smaller share of theirs frees little"
    )
    OVER_RANKS = "{micro} × {steps} × {ranks} ranks"
    OWN_BATCH_DOES_NOT_FIT = (
        "the template's own numbers do not fit together: a global batch of {total} is not {made_up}"
    )
    OWN_BATCH_NO_MULTIPLE = (
        "a global batch of {total} is no multiple of micro-batch {old_micro} × {ranks} ranks: the template's own "
        "numbers do not fit together"
    )
    OWN_NUMBERS_DO_NOT_AGREE = "the template's own numbers do not agree: {shown}"
    OWN_NUMBERS_DO_NOT_FIT = "the template's own numbers do not fit together: {total} is not {made_up}"
    OWN_TEXT_NOT_EDITED = "{training} {takes}; what stands in its own text is not edited"
    OWN_WHOLE_NO_MULTIPLE = (
        "{named} {whole} is no multiple of micro-batch {present} × {ranks} ranks: the template's own numbers do not "
        "fit together"
    )
    PARSER_HAS_NO_SUCH_OPTION = "the program does not take {spelling}: its parser has no such option"
    PART_OF_FOLDER_NOT_KNOWN = "{named}, a part of the checkpoint folder, is not known: {why}"
    PERSON_HAS_TO_AGREE = "a person has to agree ({shown})"
    PERSON_SAYS_PROGRAM_DOES_NOT_TAKE = "the program does not take {spelling}, as a person has said"
    PLACES_SMALL_AS_IT_GETS = "{places}, as small as it gets{unless}"
    PLACE_SHOWS = " ({place} shows {value})"
    POLICY_LETS_DRAIN_NOTHING = "the policy does not let this tool drain nodes"
    PRODUCT_NOT_WHOLE = "{spelling} {present} × {before} / {new} is no whole number"
    PROGRAM_CODE_DOES_NOT_SHOW = "the program's code does not show {means}"
    PROGRAM_DOES_IT_BY_ITSELF = "the program does it by itself ({where}): {why}"
    PROGRAM_ITSELF_NOT_EDITED = "the program itself sets its arguments, and is not edited"
    PROGRAM_MAKES_PASSES = "the program itself makes {passes} of the same global batch of {total}"
    PROGRAM_MAKES_STEPS = "the program itself makes {steps} accumulation steps of the global batch of {total}"
    PROGRAM_MAKES_STEPS_OF_SAME_BATCH = "the program itself makes {steps} accumulation steps of the same global batch"
    PROGRAM_MAKES_TIMES_AS_MANY = "the program itself makes {times} times as many passes of the same global batch"
    PROGRAM_MAY_NOT_KNOW_IT = (
        "{spelling} is not in the template, and a program that does not know it could go on with another experiment"
    )
    PROGRAM_NOT_HERE = "{absent} is not here, so that what it takes is not known"
    PROPORTIONAL_FALLS_TO = "what grows in proportion to {spelling} falls to about {new}/{present}"
    PYTORCH_DOES_NOT_READ_NEW_NAME = "PyTorch {said} does not read {new_name} (2.10 and later do), so {name} is set"
    PYTORCH_HAS_NO_EXPANDABLE_SEGMENTS = "PyTorch {said} has no expandable segments (2.1 and later have)"
    RANKS_NOT_DIVISIBLE_BY_MODEL_PARALLEL = "{world} ranks cannot be divided by a model-parallel size of {degrees}"
    RANKS_NOT_KNOWN = "the number of ranks is not known"
    RANKS_NOT_KNOWN_BATCH_OPEN = "the number of ranks is not known, so it is not certain that the batch divides"
    RANKS_NOT_KNOWN_SHARDING_OPEN = (
        "the number of ranks is not known, so whether the sharding still divides is not known"
    )
    RANKS_NOT_WHOLE_ON_NODES_LEFT = "{ranks} data-parallel ranks on {nodes} nodes are no whole number on {left}"
    RANK_NOT_AT_THE_EDGE = "rank {rank} failed, which is on pipeline stage {stage} of {stages}, not on the {edge}"
    READS_NO_COMMAND_LINE = "reads no command line"
    RELATIVE_AND_FOLDER_CHANGES = "{value} is relative, and the job changes its folder ({where})"
    RELAUNCHED_AS_OFTEN_AS_ALLOWED = "the job was relaunched {done} times, as often as the policy allows ({most})"
    REQUEST_LARGER_THAN_GPU = "the request of {tried:GiB} is larger than the GPU ({capacity:GiB})"
    ROOM_OF_HOST_NOT_KNOWN = "whether the host has room for what would be offloaded is not known"
    SAMPLES_CANNOT_BE_CUT = "{samples} samples of a step cannot be cut into micro-batches of {new_micro} exactly"
    SAMPLES_NOT_WHOLE_ON_NODES_LEFT = (
        "{micro} × {steps} samples on each rank of {nodes} nodes are no whole number on {left}, so the global batch "
        "would change"
    )
    SAMPLES_OF_A_STEP = "{old_micro} × {steps} = {new_micro} × {new_steps} samples of a step on each rank"
    SCRIPT_NOT_KNOWN = "the script that was submitted is not known: {notes}"
    SEEN_AT = "{text} at {file}:{line}"
    SEGMENT_DOES_NOT_DIVIDE_NODES = "--segment={segment} does not divide {left} nodes"
    SEVERAL_NODES = "the job has {nodes} nodes"
    SEVERAL_OPTIONS_MAY_BE_MEANT = "the program has several options that may be meant ({shown})"
    SHARDING_DOES_NOT_DIVIDE_RANKS_LEFT = "a sharding degree of {product} does not divide the {ranks} ranks left"
    SHARING_RANKS_NOT_KNOWN = (
        "{spelling} is not in the template, so over how many ranks the states are shared is not known"
    )
    SMALL_AS_IT_GETS = "{spelling} is {present} already, as small as it gets"
    SOMETHING_ELSE_SET_ITS_LIMIT = (
        "{spelling} is {present}, and the job had {limit:.1GiB} on each node: something else set its limit"
    )
    SO_IT_FOLLOWS = "{said}, so {why}"
    SPELLINGS_OF_SEVERAL_VERSIONS = "the template mixes spellings of several versions of {title}"
    SPELLING_DEPENDS_ON_VERSION = "how {id} is spelt depends on the version of {title} ({shown:, })"
    SPELT_IN = "{spelt} in {item}"
    STANDS_AND_SO = "{shown}{value}: {why}"
    STANDS_AT = "{spelling} {value} stands at {where}"
    STANDS_IN_PROGRAM = "{spelling} {value} stands in the program itself ({where}), which is not edited"
    STANDS_THERE_NOT_KNOWN = "{shown} stands there, and its value is not known{why}"
    STAND_IN_PROGRAM = "{values:, } in the program itself, which is not edited"
    STARTS_AGAIN = "{title} ({place}): {what_happens}"
    STARTS_FROM_SCRATCH = "its log says that it starts from scratch"
    STARTS_FROM_SCRATCH_NOT_FROM = "its log says that it starts from scratch, not from step {wanted}"
    STEPS_LEFT_OUT_FOR_REQUEST = (
        "one request alone is {times:.1f} times the GPU, so the steps up to 1/{factor} are left out"
    )
    STEPS_MADE_NOT_KNOWN = "how many steps the job made before is not known"
    STEPS_OUTSIDE_OF_ACCUMULATION = "{call} at {place} runs in every pass, whatever {spelling} says"
    SUBMIT_WITH_NODES_LEFT = "Submit it with the nodes that are left in that file."
    TEMPLATE_DOES_NOT_SET = "the template does not set it"
    THIS_IS_ANOTHER_VERSION = "{why}, and this is {title} {possible: or }"
    THIS_VERSION_DOES_NOT_HAVE = "this version of {title} has no {spelling}"
    TIMES_AS_MANY_PASSES = "{times} times as many passes"
    TOKENS_OF_MICRO_BATCH_FALL_TO = "what grows with the tokens of a micro-batch falls to about {new}/{present}"
    TOO_LITTLE_WITHOUT_FRAGMENTATION = (
        "even without any fragmentation {free:GiB} would have been there for a request of {tried:GiB}"
    )
    TO_A_VALUE_NOT_KNOWN = "to a value that is not known"
    TRACEBACK_DOES_NOT_SHOW = "the traceback does not show {means}"
    TRIED = "{why} ({shown})"
    UNLESS_WORD_SAYS_OTHERWISE = ", unless {word} of the command says otherwise"
    VALUE_NOT_KNOWN = "{spelling} is not known"
    VERSION_DOES_NOT_SHOW = "{why}, and which version of {title} this is does not show in the template"
    VERSION_OF_JOB_NOT_KNOWN = "{why}; which version this job has is not known"
    WHAT_FILE_SETS_NOT_KNOWN = "what {spelling} {path} sets is not known"
    WHAT_IS = "What is {spelling}?"
    WHAT_IS_AND_IS_SET = "What is {spelling} ({place} sets {name} {value})?"
    WHAT_IS_IT_HAS_TO_AGREE = "What is {spelling}? It has to agree."
    WHAT_IS_IT_NAMES_CONFIGURATION = "What is {name}? It names the program's configuration ({place})."
    WHAT_IS_WORD_AND_WHICH_OPTION = "What is {word} of the training command, and which option there sets {what}?"
    WHAT_IS_WRITE_IT = "What is {spelling}? Write it into the template."
    WHAT_IS_WRITE_PRESENT_VALUE = "What is {spelling}? Write it into the template with its present value."
    WHAT_MAY_BE_CHANGED = "What may be changed for this kind of failure?"
    WHAT_SETS_IT_NOT_KNOWN = "what sets {what} is not known, and {why}"
    WHAT_WAS_ARGUMENT = "What was the script given as ${number}? It names the program's configuration ({place})."
    WHAT_WOULD_SETTLE_IT = "What would settle it: {missing:; }."
    WHERE_DOES_CONFIGURATION_LIE = "Where does {path} lie ({place})?"
    WHERE_DOES_PROGRAM_LIE = "Where does {absent} lie, and which of its options or files sets {what}?"
    WHETHER_IT_SAVES_NOT_KNOWN = "what {named} is, is not known, and so neither whether the job saves: {why}"
    WHETHER_ON_BY_DEFAULT_NOT_KNOWN = "whether {spelling} is on where nothing is set is not known"
    WHETHER_PROGRAM_TAKES_IT_NOT_KNOWN = (
        "{spelling} is not in the template, and whether the program takes it is not known"
    )
    WHETHER_PYTORCH_READS_NOT_KNOWN = (
        "whether this PyTorch reads {new_name} is not known ({said}), so both names get the same value"
    )
    WHICH_FILE_IS_NAMED = "Which file does {place} name?"
    WHICH_FILE_SETS_IT = "Which file of the program sets {what}, and may a person change it there?"
    WHICH_FOLDER_HAS_CHECKPOINTS = (
        "Which folder did the job write its checkpoints to{number}? Write it into {place} as plain text, an absolute "
        "path, and submit that."
    )
    WHICH_FRAMEWORK = "Which framework launches this job? A document under playbooks/oom/levers can describe it."
    WHICH_NAME_IS_MEANT = "Which of {name} and {new_name} is meant? Remove the other."
    WHICH_NUMBER_HOLDS = "Which of them does the job run with?"
    WHICH_OF_THE_VERSIONS = "Which version of {title} is installed ({versions:, })?"
    WHICH_OPTION_IS_IT = "Which of them is it: {shown}?"
    WHICH_OPTION_LOADS_CHECKPOINT = "By which option does the program load {path}? Write it into the template."
    WHICH_OPTION_SETS_IT = "Which option of the program sets {what}?"
    WHICH_SETS_AND_MAY = "Which option or file sets {name}, and may"
    WHICH_SIZES_HAS_IT = "Which sizes does {spelling} have?"
    WHICH_VERSION = "Which version of {title} is installed?"
    WHOLE_NODE_RAN_OUT = "the whole node ran out, not what the job may have of it"
