# SPDX-License-Identifier: Apache-2.0
"""What an agent's process runs (helpers.py)."""
import no_pytest

no_pytest.install()
import helpers  # noqa: E402

helpers.agent_main()
