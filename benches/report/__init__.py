# SPDX-License-Identifier: Apache-2.0
"""The measurements behind scripts/bench: one file a group of rows."""
