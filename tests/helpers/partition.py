"""Partitions by name: ``partition.dirichlet(labels, clients=8, alpha=0.3, seed=0)``.

Every scheme returns a partition table, see `fl.data.partition_table`, whose functions are here too.
"""

from fl.data.partition_statistics import statistics as statistics
from fl.data.partition_table import content_hash as content_hash
from fl.data.partition_table import read as read
from fl.data.partition_table import unseen_clients as unseen_clients
from fl.data.partition_table import validate as validate
from fl.data.partition_table import write as write
from fl.data.schemes.client_dirichlet import client_dirichlet as client_dirichlet
from fl.data.schemes.dirichlet import dirichlet as dirichlet
from fl.data.schemes.domain import domain as domain
from fl.data.schemes.domain_dirichlet import domain_dirichlet as domain_dirichlet
from fl.data.schemes.dominant import dominant as dominant
from fl.data.schemes.file import file as file
from fl.data.schemes.homogeneous import homogeneous as homogeneous
from fl.data.schemes.natural import natural as natural
from fl.data.schemes.pathological import pathological as pathological
from fl.data.schemes.power_law import power_law as power_law
