"""SHA-256 of the upstream code that the overlay was compared with: place -> hash, by part.

From the commit of November 2023, computed by `Checkout.digest`; no code is copied. The helpers that the replaced code
calls are included: a fork with another `bbox_iou` has another loss.
"""

LOSS = {
    "utils/loss.py:smooth_BCE": "df223926f244194c3fd94d0abba4971fd299b51c5807f3b7626320e10ae2e4e5",
    "utils/loss.py:FocalLoss": "0c130d149bcd904b56ea99ab92016f9486932762b0acf31fe4dae7057e560e1a",
    "utils/loss.py:ComputeLoss": "7f06daaa8a1e37fdd27d70cc83bd42f8116c3c2d5666c40d985615dcb36bb402",
    "utils/loss.py:ComputeLossOTA": "8afd5d228a0a30b5658ce754176f5a7b9c86451a403d553cd407d0adc01e527b",
    "utils/loss.py:ComputeLossAuxOTA": "50ac773d3282c38555631b3a7e489dc9f8bff8251b2dd2cf53f7eeb8c66369ea",
    "utils/general.py:bbox_iou": "be013eaeafb5f8d884492e3356b3d8cd3774132db20c08c5ec2e880c902a8d87",
    "utils/general.py:box_iou": "851a4d99749e86bb94c79f7e02f990d8f893a697f6b58144bda6917f13daa1ea",
    "utils/general.py:xywh2xyxy": "f9b5fcb3c3b435a7e37ceeafcd709232753e483ddd32b553bc62cc552b09bf06",
}
LOADER = {
    "utils/datasets.py:create_dataloader": "57b955cd614e5b49455f47ecbdcfc525808d9e30c098ce1f11cf52e415195841",
    "utils/datasets.py:InfiniteDataLoader": "fd5bef3d6a18bcb616d265aac0aa9a9613d7e6e93dbe69891ec64bbe4f809f0d",
    "utils/datasets.py:_RepeatSampler": "6d553aa20b685a229c7562957bb6bce637d0b18c25d1e526a6186772f2757436",
    "utils/datasets.py:LoadImagesAndLabels": "13911fa4620cd4c83bc85fb8d50e3b3f8681885363d3540253cdea458df7cd14",
    "utils/datasets.py:img2label_paths": "76bf3a74c29f9b3cfd5eb62a2b9f9ebf0e9acf6edb8dd4815f7dcfd0bbc1136a",
    "utils/datasets.py:exif_size": "def74397333fc318534ef2850f80e766921321fd3d4bd84fc209512e743096cf",
    "utils/datasets.py:load_image": "035c0d163e9966f36eae0c49772049b2d344b02aefa1878f6c0e1306b2724738",
    "utils/datasets.py:augment_hsv": "240a8ad1c9f0775f45632516dc2bf0bd26384757f3b981ca0f1a233759b8e076",
    "utils/datasets.py:load_mosaic": "efa1e9dfbb7694a3d5b1117c64944bd30323aea7c140dbf53b9a23f7e253b068",
    "utils/datasets.py:load_mosaic9": "bd8ea8173c32a079c32476bcb650f5c279201cce24e99569374f46ba9d7e382a",
    "utils/datasets.py:load_samples": "e2e3355037b4399ff630ae4b7e8aa80717137f6ed67c0f98200765aab54bafc5",
    "utils/datasets.py:copy_paste": "59fbbbb4a33a26c4eeba0316c7bf057583c8460340905ec1767c9d0a9d5a80df",
    "utils/datasets.py:sample_segments": "a9b2c31f222ad67961ddd6223745a4c182f214f08c48df1fdcb2924d846b90fc",
    "utils/datasets.py:letterbox": "b4367609f337a9f481257fcf2c96ede0b2531393060adf01782b2a47975bd19e",
    "utils/datasets.py:random_perspective": "5e0928882457add830b73ed2faea7d4f92a81a903d1a9aa222b8181e00c9b911",
    "utils/datasets.py:box_candidates": "7f0a995eaf23520787f1677aaf4685ac747aab5cf4e52c5660574a672fa57ee8",
    "utils/datasets.py:bbox_ioa": "02ef0f4c52597b035a9e067426a94feff05c56e20f13b31e03af4a9bd5139bfe",
    "utils/datasets.py:pastein": "de8bd58e1c6ee2c81d430df6d557f60c84fdaca2458041198ed5b95cac2d2742",
    "utils/general.py:xywhn2xyxy": "12e0c3b66406c92682e16031b4e97c70e333e23b32dccbfc69d15ec327b1e443",
    "utils/general.py:xyn2xy": "1a035729be730266847e60befc08a9a1c046d1ab9be4597904f27d24b4fb229b",
    "utils/general.py:xyxy2xywh": "5d31fdddc4f57add53f4302456925fe1f9c33f1373e6f1a89a49c5e4cf1789f5",
    "utils/general.py:segments2boxes": "1c60471551358ebc714d884099bb2afaa5008a38e24658afca5f4ed5b8c232bf",
    "utils/general.py:resample_segments": "b881dc39cdb9862a0523e70868589d6e2e4aeb81eba197e6c988c61af3ed505d",
}
METRICS = {
    "utils/general.py:non_max_suppression": "44b88d3382be7a2783571d4cbce406fbf77efbd2f770e6ac17fed5235aeda75a",
    "utils/general.py:xywh2xyxy": "f9b5fcb3c3b435a7e37ceeafcd709232753e483ddd32b553bc62cc552b09bf06",
    "utils/metrics.py:ap_per_class": "edd2f167836a9b12540cc137c89d550e98960608888c63ad9f1ba63483080ad4",
    "utils/metrics.py:compute_ap": "e9c894102c1ea769c7959f5228a8c267422c731bbebce80af486d409ed2d20bd",
}
