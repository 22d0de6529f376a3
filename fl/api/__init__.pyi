"""What `fl.api` has, module by module: for type checkers, for readers, and for `fl.api` itself."""

# ruff: noqa: I001

# What a config says of a method, and which values its keys may have.
from fl.base.declaration import declare as declare
from fl.base.fields import (
    Bound as Bound,
    Count as Count,
    Index as Index,
    NonNegative as NonNegative,
    Positive as Positive,
    Seed as Seed,
    Share as Share,
)
from fl.base.schema import GLOBAL as GLOBAL, PERSONAL as PERSONAL
from fl.base.errors import FedloomError as FedloomError

# Trees of tensors, states, and random numbers by key.
from fl.api.trees import AnyTree as AnyTree, Inputs as Inputs, Rate as Rate, Tree as Tree
from fl.api.state import ClientFacts as ClientFacts, Variables as Variables, Weights as Weights
from fl.api import trees as trees
from fl.pytorch import keyed as keyed
from fl.base import rng as rng

# Methods.
from fl.api.method import (
    COUNTS as COUNTS,
    VARIABLE_GROUPS as VARIABLE_GROUPS,
    MODALITY as MODALITY,
    PAYLOAD as PAYLOAD,
    PERSONAL_PARAMS as PERSONAL_PARAMS,
    REAL as REAL,
    SHARED_PARAMS as SHARED_PARAMS,
    WeightedAverage as WeightedAverage,
    MeanBased as MeanBased,
    Method as Method,
    Pass as Pass,
    Phase as Phase,
    Predictor as Predictor,
    Refresh as Refresh,
    Sampling as Sampling,
    ServerWork as ServerWork,
    BuildContext as BuildContext,
    Sweep as Sweep,
    single_pass as single_pass,
    training_passes as training_passes,
)
from fl.api.recipes import (
    AddedStates as AddedStates,
    Recipe as Recipe,
    RecipeClient as RecipeClient,
    RecipeServer as RecipeServer,
    RecipeUpload as RecipeUpload,
    RecipeWork as RecipeWork,
    StepResults as StepResults,
    TrainingPass as TrainingPass,
    all_weights as all_weights,
    personal_model as personal_model,
    recipe as recipe,
    select as select,
    shared_model as shared_model,
    weights_in as weights_in,
    weights_not_in as weights_not_in,
)
from fl.api.optimizers import (
    Optimizer as Optimizer,
    adamw as adamw,
    optimizer as optimizer,
    sgd as sgd,
)
from fl.api.training import Training as Training, learning_rate as learning_rate

# Terms of a loss.
from fl.api.tasks.classification import classification_loss as classification_loss
from fl.api.term import (
    SHARED as SHARED,
    AdaptiveTerm as AdaptiveTerm,
    ReferenceTerm as ReferenceTerm,
    Forward as Forward,
    Periodic as Periodic,
    ReferencePass as ReferencePass,
    TappedTerm as TappedTerm,
    Term as Term,
    WeightTerm as WeightTerm,
    cross_entropy as cross_entropy,
    task_loss as task_loss,
)
from fl.api.method import MethodTerm as MethodTerm
from fl.api.task import ALL_TASKS as ALL_TASKS, Task as Task, weighted_mean as weighted_mean

# Alterations of features.
from fl.api.alteration import (
    ALTERATION_STATES as ALTERATION_STATES,
    Alteration as Alteration,
    Alterations as Alterations,
    mixed as mixed,
    remember as remember,
)

# What lies between uploads and the server.
from fl.api.uploads import (
    Aggregation as Aggregation,
    RoundUploads as RoundUploads,
    UploadSize as UploadSize,
    UploadFilter as UploadFilter,
    per_round as per_round,
)

# Who takes part in rounds, and when.
from fl.api.participation import (
    ArrivedUploads as ArrivedUploads,
    AsynchronousServer as AsynchronousServer,
    DeviceTable as DeviceTable,
    Offer as Offer,
    Outcome as Outcome,
    Presence as Presence,
    Selection as Selection,
    staleness_factor as staleness_factor,
)

# Networks.
from fl.api.network import Around as Around, Network as Network, Output as Output
from fl.pytorch.vision import load_pretrained as load_pretrained, torchvision as torchvision

# Types of the functions that these are made of.
from fl.api.protocols import (
    Aggregate as Aggregate,
    Batch as Batch,
    View as View,
    is_consuming_gradients as is_consuming_gradients,
    stack_gradients_of as stack_gradients_of,
    with_stack_gradients as with_stack_gradients,
    consumes_gradients as consumes_gradients,
)
