"""Times: records and readers of measured times, models of them, and what they say about machines and NCCL's picks.

``records`` are measurements as records and files, ``readers`` take them from other files, ``measured`` are tables of
them; ``statistics`` and ``evidence`` say what is beyond the noise, ``comparison`` puts picks beside the best.
``calibration`` calibrates ``timemodel``; ``costmodels`` has the textbook's formulas. ``acceptance`` judges a machine,
``regret`` NCCL's choices.
"""
